package main

import (
	"strings"
	"testing"
)

func TestSim(t *testing.T) {
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"sim -n 200 --quiet --workers 2", 0, "in the stated window"},
		{"sim -n 3 --quiet --nodes 3 --mode harsh --route ucx-put", 0, "schedules"},
		{"sim -n 1 --quiet --trace --seed 7", 0, "faults end"},
		{"sim -n 2 --trace", 2, "-n 1"},
		{"sim --nodes 9", 2, "2 to 8"},
		{"sim --mode gentle", 2, "mode"},
	} {
		var out, errs strings.Builder
		code := run(&env{t.Context(), &out, &errs, nil}, strings.Fields(tt.args))
		text := out.String() + errs.String()
		if code != tt.code || !strings.Contains(text, tt.want) {
			t.Errorf("kvcr %s: exit %d, want %d and %q:\n%s", tt.args, code, tt.code, tt.want, text)
		}
	}
}
