//go:build !race

package hints

const racing = false
