// Command kvcr runs, measures and inspects KVCR.
//
// Settings come from flags, then the environment (KVCR_*), then a YAML file,
// then defaults. Unknown names in any of them are errors that name the nearest
// known one. Exit codes: 0 success, 1 failure, 2 usage.
package main
