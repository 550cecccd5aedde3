//go:build !kvcr_check && !race

package blockcopy

const checking = false
