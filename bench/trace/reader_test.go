package trace

import (
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

const good = `{"timestamp": 7, "input_length": 600, "output_length": 5, "hash_ids": [0, 18446744073709551615]}`

func TestReader(t *testing.T) {
	for _, tt := range []struct {
		name, line string
		want       error // nil: accepted
	}{
		{"good", good, nil},
		{"carriage return", good + "\r", nil},
		{"no blocks", `{"timestamp":0,"input_length":0,"output_length":0,"hash_ids":[]}`, nil},
		{"cut off", good[:40], ErrSyntax},
		{"unknown field", strings.Replace(good, "timestamp", "time", 1), ErrSyntax},
		{"one field more", strings.Replace(good, "{", `{"tenant": 3, `, 1), ErrSyntax},
		{"missing field", `{"timestamp":0,"input_length":1,"hash_ids":[1]}`, ErrSyntax},
		{"null ids", `{"timestamp":0,"input_length":1,"output_length":0,"hash_ids":null}`, ErrSyntax},
		{"more behind", good + good, ErrSyntax},
		{"rubbish behind", good + " ]", ErrSyntax},
		{"an array", `[1]`, ErrSyntax},
		{"negative id", strings.Replace(good, "[0", "[-1", 1), ErrSyntax},
		{"a fraction", strings.Replace(good, "600", "600.5", 1), ErrSyntax},
		{"negative time", strings.Replace(good, "7", "-7", 1), ErrRange},
		{"negative length", strings.Replace(good, "600", "-600", 1), ErrRange},
		{"long", good + strings.Repeat(" ", 300), ErrTooLong},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := "\n" + good + "\n" + tt.line + "\n" + good // the last without a newline
			r := NewReader(strings.NewReader(in), Options{MaxLine: 200})
			var reqs int
			var broken []error
			for {
				req, err := r.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					var le *LineError
					if !errors.As(err, &le) || le.Line != 3 {
						t.Errorf("error %v, want one of line 3", err)
					}
					broken = append(broken, err)
					continue
				}
				if reqs++; req.IDs == nil {
					t.Error("ids are nil")
				}
			}
			if tt.want == nil && (reqs != 3 || len(broken) != 0) {
				t.Errorf("%d requests, errors %v", reqs, broken)
			}
			if tt.want != nil && (reqs != 2 || len(broken) != 1 || !errors.Is(broken[0], tt.want)) {
				t.Errorf("%d requests, errors %v, want 2 and %v", reqs, broken, tt.want)
			}
			tr, err := Read(strings.NewReader(in), "x", Options{MaxLine: 200, OnBroken: Continue})
			if err != nil || len(tr.Requests) != reqs || tr.Broken != len(broken) {
				t.Errorf("Continue: %d requests, %d broken, error %v", len(tr.Requests), tr.Broken, err)
			}
			if tt.want == nil {
				return
			}
			if tr, err := Read(strings.NewReader(in), "x", Options{MaxLine: 200}); !errors.Is(err, tt.want) || len(tr.Requests) != 1 {
				t.Errorf("Stop: %d requests, error %v", len(tr.Requests), err)
			}
		})
	}
	req, err := NewReader(strings.NewReader(good), Options{}).Next()
	if err != nil || req.Timestamp != 7 || req.InputLength != 600 || req.OutputLength != 5 || !slices.Equal(req.IDs, []uint64{0, 1<<64 - 1}) {
		t.Errorf("read %+v, error %v", req, err)
	}
}

// TestReaderLimit: the limit holds to the byte, and lines longer than the buffer
// are one line.
func TestReaderLimit(t *testing.T) {
	long := strings.Repeat(" ", 200<<10) + good
	in := long + "\n" + good + "\n"
	for limit, want := range map[int]int{len(long): 0, len(long) - 1: 1} {
		tr, err := Read(iotest.HalfReader(strings.NewReader(in)), "x", Options{MaxLine: limit, OnBroken: Continue})
		if err != nil || tr.Broken != want || len(tr.Requests) != 2-want {
			t.Errorf("limit %d: %d broken, %d requests, error %v", limit, tr.Broken, len(tr.Requests), err)
		}
	}
}

func TestReaderPassesErrorsOn(t *testing.T) {
	want := errors.New("disk on fire")
	_, err := Read(io.MultiReader(strings.NewReader(good+"\n"), iotest.ErrReader(want)), "x", Options{OnBroken: Continue})
	if !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}

// FuzzReader: no input panics; each broken line is a *LineError of a known
// condition with a line number that rises; Continue and Stop agree on what is
// broken; and a request read encodes to a line that reads back the same.
func FuzzReader(f *testing.F) {
	f.Add([]byte(good + "\n\n" + good))
	f.Add([]byte(good[:30] + "\n" + good))
	f.Add([]byte(strings.Repeat("x", 5000)))
	f.Add([]byte(`{"timestamp":1e2,"input_length":1,"output_length":0,"hash_ids":[1,2]}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		const limit = 1 << 10
		r := NewReader(strings.NewReader(string(in)), Options{MaxLine: limit})
		var reqs []Request
		broken, line := 0, 0
		for {
			req, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				var le *LineError
				if !errors.As(err, &le) || le.Line <= line {
					t.Fatalf("error %v after line %d", err, line)
				}
				if !errors.Is(err, ErrSyntax) && !errors.Is(err, ErrRange) && !errors.Is(err, ErrTooLong) {
					t.Fatalf("unclassified error %v", err)
				}
				line = le.Line
				broken++
				continue
			}
			reqs = append(reqs, req)
			back, err := json.Marshal(map[string]any{
				"timestamp": req.Timestamp, "input_length": req.InputLength,
				"output_length": req.OutputLength, "hash_ids": req.IDs,
			})
			if err != nil {
				t.Fatal(err)
			}
			again, err := NewReader(strings.NewReader(string(back)), Options{}).Next()
			if err != nil || again.Timestamp != req.Timestamp || again.InputLength != req.InputLength ||
				again.OutputLength != req.OutputLength || !slices.Equal(again.IDs, req.IDs) {
				t.Fatalf("%s read back as %+v, error %v", back, again, err)
			}
		}
		tr, err := Read(strings.NewReader(string(in)), "fuzz", Options{MaxLine: limit, OnBroken: Continue})
		if err != nil || len(tr.Requests) != len(reqs) || tr.Broken != broken {
			t.Fatalf("Continue: %d requests and %d broken, error %v; Stop: %d and %d", len(tr.Requests), tr.Broken, err, len(reqs), broken)
		}
	})
}
