package main

import (
	"strings"
	"testing"
)

func TestBusyNote(t *testing.T) {
	for load, want := range map[string]bool{"0.05 0.14 0.11 1/200 123": false, "0.99 1 1 1/2 3": false, "1.00 1 1 1/2 3": true, "7.50 5 6 1/2 3": true, "": false, "many": false} {
		if got := busyNote(load, 2); (got != "") != want {
			t.Errorf("load %q on two processors: note %q", load, got)
		}
	}
	if got := busyNote("7.50 5 6", 2); !strings.Contains(got, "7.5") || !strings.Contains(got, "2 processors") {
		t.Errorf("the note %q lacks load or processors", got)
	}
}
