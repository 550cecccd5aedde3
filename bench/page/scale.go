package page

import (
	"fmt"
	"math"
	"strings"
)

// Sizes in units of the SVG, which are pixels where there is room.
const (
	fontSize   = 12.0
	charWidth  = 0.62 * fontSize // of a wide sans-serif's digit
	lineHeight = 1.3 * fontSize
)

func textWidth(s string) float64 { return charWidth * float64(len([]rune(s))) }

// scale maps values to places of an axis.
type scale struct {
	lo, hi   float64 // values, lo < hi
	from, to float64 // places of lo and hi
	log      bool    // lo > 0 then
}

func (s scale) at(v float64) float64 {
	lo, hi := s.lo, s.hi
	if s.log {
		v, lo, hi = math.Log10(v), math.Log10(lo), math.Log10(hi)
	}
	return s.from + (v-lo)/(hi-lo)*(s.to-s.from)
}

// tick is a labelled place of an axis.
type tick struct {
	value float64
	label string
}

// linearTicks are about n round values from 0 to the first one that is not below
// top.
func linearTicks(top float64, n int) []tick {
	if top <= 0 {
		top = 1
	}
	step := roundUp(top / float64(n))
	var ticks []tick
	for i := 0; ; i++ {
		v := float64(i) * step
		ticks = append(ticks, tick{v, short(v)})
		if v >= top*(1-1e-9) {
			return ticks
		}
	}
}

// roundUp is the least of 1, 2, 2.5 and 5 times a power of ten that is not below v.
func roundUp(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 2.5, 5} {
		if m*power >= v*(1-1e-9) {
			return m * power
		}
	}
	return 10 * power
}

// logTicks are the powers of ten around lo to hi, or more of them over a short way.
func logTicks(lo, hi float64) []tick {
	first, last := math.Floor(math.Log10(lo)+1e-9), math.Ceil(math.Log10(hi)-1e-9)
	if first == last {
		last++
	}
	steps := []float64{1}
	if last-first <= 2 {
		steps = []float64{1, 2, 5}
	}
	var ticks []tick
	for p := first; p <= last; p++ {
		for _, m := range steps {
			v := m * math.Pow(10, p)
			if p == last && m > 1 {
				break
			}
			ticks = append(ticks, tick{v, short(v)})
		}
	}
	// Less empty space where the values do not fill their decades.
	for len(ticks) > 2 && ticks[1].value <= lo {
		ticks = ticks[1:]
	}
	for len(ticks) > 2 && ticks[len(ticks)-2].value >= hi {
		ticks = ticks[:len(ticks)-1]
	}
	return ticks
}

// short writes a tick's value: round, so that few digits are exact.
func short(v float64) string {
	a := math.Abs(v)
	switch {
	case a >= 1e9:
		return trim(v/1e9) + " G"
	case a >= 1e6:
		return trim(v/1e6) + " M"
	case a >= 1000:
		return number(v) // with commas
	}
	return trim(v)
}

func trim(v float64) string {
	s := fmt.Sprintf("%.6f", v)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// apart drops the labels of ticks, not the ticks, that would meet the one before;
// room is what a label takes along the axis. The last label stays, since it is the
// axis's end.
func apart(ticks []tick, s scale, room func(label string) float64) []tick {
	out := make([]tick, len(ticks))
	copy(out, ticks)
	free := math.Inf(1) // the place from which on labels stand already
	for i := len(out) - 1; i >= 0; i-- {
		if out[i].label == "" {
			continue
		}
		at, half := math.Abs(s.at(out[i].value)-s.from), room(out[i].label)/2
		if at+half > free {
			out[i].label = ""
			continue
		}
		free = at - half
	}
	return out
}

// bytesOf writes a size as people say it.
func bytesOf(n float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size {
			return trim(math.Round(n/u.size*100)/100) + " " + u.name
		}
	}
	return trim(n) + " B"
}
