//go:build kvcr_check || race

package blockcopy

// checking turns on the checks too costly for every copy.
const checking = true
