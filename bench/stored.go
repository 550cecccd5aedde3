package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// ReadRows reads what WriteJSON has written, by this version or an earlier one.
func ReadRows(r io.Reader) ([]Row, error) {
	dec := json.NewDecoder(r)
	var rows []Row
	if err := dec.Decode(&rows); err != nil {
		return nil, fmt.Errorf("bench: stored results: %w", err)
	}
	for i, row := range rows {
		switch {
		case row.Suite == "" || row.Name == "" || row.Impl == "":
			return nil, fmt.Errorf("bench: stored results: row %d has no suite, name or impl: is this a file of kvcr bench --json?", i+1)
		case row.Better != Lower && row.Better != Higher:
			return nil, fmt.Errorf("bench: stored results: row %d (%s %s): better is %q, must be %q or %q", i+1, row.Suite, row.Name, row.Better, Lower, Higher)
		case len(row.Runs) == 0:
			return nil, fmt.Errorf("bench: stored results: row %d (%s %s): no runs", i+1, row.Suite, row.Name)
		}
	}
	return rows, nil
}

// WriteRows writes rows as one indented array.
func WriteRows(w io.Writer, rows []Row) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if rows == nil {
		rows = []Row{} // [] and not null
	}
	return enc.Encode(rows)
}

// Title names the question that a row answers: suite, name and parameters, those
// in alphabetical order.
func (r *Row) Title() string {
	if r.Name == RunName {
		return r.Suite + " " + r.Name // its parameters are no part of the question
	}
	parts := []string{r.Suite, r.Name}
	for _, name := range slices.Sorted(maps.Keys(r.Params)) {
		parts = append(parts, name+"="+ParamText(r.Params[name]))
	}
	return strings.Join(parts, " ")
}

// ParamText is a parameter's value as text, the same whether it was stored, which makes
// every number a float64, or not.
func ParamText(v any) string {
	if f, ok := v.(float64); ok {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}

// Key tells a row from all others of one run.
func (r *Row) Key() string { return r.Title() + " " + r.Impl }

// MergeRows is all rows of several runs. Of those with one key the last stays, in
// the place of the first.
func MergeRows(runs ...[]Row) []Row {
	var out []Row
	at := map[string]int{}
	for _, row := range slices.Concat(runs...) {
		if i, ok := at[row.Key()]; ok {
			out[i] = row
			continue
		}
		at[row.Key()] = len(out)
		out = append(out, row)
	}
	return out
}
