package main

import (
	"fmt"
	"os"
	"strings"
)

// busyNote says so when other work takes processors from a measurement: then
// whoever spins or is quick loses most, and ratios mean little. loadavg is the
// text of /proc/loadavg; what cannot be read is no note.
func busyNote(loadavg string, processors int) string {
	var load float64
	if _, err := fmt.Sscan(strings.TrimSpace(loadavg), &load); err != nil || load < float64(processors)/2 {
		return ""
	}
	return fmt.Sprintf("the load average is %.1f on %d processors: other work runs here, figures are for orientation only", load, processors)
}

func readLoad() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	return string(text)
}
