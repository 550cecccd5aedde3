//go:build !race

package blockcopy

func raceRead([]byte) {}
