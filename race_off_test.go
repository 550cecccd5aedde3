//go:build !race

package kvcr

const raceOn = false
