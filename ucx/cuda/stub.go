//go:build !(linux && cgo && ucx)

package cuda

func openLibrary(string) (api, error) { return nil, ErrNotBuilt }
