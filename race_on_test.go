//go:build race

package kvcr

const raceOn = true
