package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

var units = []struct {
	name  string
	bytes int64
}{
	{"tib", 1 << 40}, {"gib", 1 << 30}, {"mib", 1 << 20}, {"kib", 1 << 10},
	{"tb", 1e12}, {"gb", 1e9}, {"mb", 1e6}, {"kb", 1e3},
	{"t", 1 << 40}, {"g", 1 << 30}, {"m", 1 << 20}, {"k", 1 << 10}, {"b", 1},
}

// parseSize reads 4096, 64KiB, 1.5g, 512MB: powers of two for K, KiB ..., of
// ten for KB, MB, GB, TB.
func parseSize(s string) (int64, error) {
	text := strings.ToLower(strings.TrimSpace(s))
	unit := int64(1)
	for _, u := range units {
		if n, ok := strings.CutSuffix(text, u.name); ok {
			text, unit = strings.TrimSpace(n), u.bytes
			break
		}
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) {
		return 0, fmt.Errorf("%q is no size: write a number of bytes, or one with KiB, MiB, GiB, such as 512MiB", s)
	}
	if v < 0 || v*float64(unit) > math.MaxInt64/2 {
		return 0, fmt.Errorf("%q is out of range: a size is 0 to 4 EiB", s)
	}
	return int64(v * float64(unit)), nil
}

// formatSize writes a size as a person would.
func formatSize(n int64) string {
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.bytes {
			return strings.TrimSuffix(strconv.FormatFloat(float64(n)/float64(u.bytes), 'f', 1, 64), ".0") + " " + u.name
		}
	}
	return strconv.FormatInt(n, 10) + " B"
}
