package hints

import "fmt"

// UnmarshalText reads what MarshalText wrote.
func (s *Status) UnmarshalText(text []byte) error {
	for v := Accepted; v <= Rejected; v++ {
		if v.String() == string(text) {
			*s = v
			return nil
		}
	}
	return fmt.Errorf("%q is no status of an action: ACCEPTED or REJECTED", text)
}

// UnmarshalText reads what MarshalText wrote.
func (r *Reason) UnmarshalText(text []byte) error {
	for v := range numReasons {
		if v.String() == string(text) {
			*r = v
			return nil
		}
	}
	return fmt.Errorf("%q is no reason to reject an action", text)
}
