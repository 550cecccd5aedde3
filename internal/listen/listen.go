// Package listen has what every listener of ours looks at before it takes an
// address.
package listen

import (
	"errors"
	"net"
	"os"
	"time"
)

// RemoveStale removes the socket at path if nobody listens on it any more. A path
// with nothing there is fine; anything but a socket, or one that somebody listens
// on, is an error and stays.
func RemoveStale(path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.Mode()&os.ModeSocket == 0 {
		return errors.New("it exists and is no socket")
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return errors.New("somebody listens on it")
	}
	return os.Remove(path)
}

// Loopback reports whether addr, host:port, can be reached from this machine only.
// An empty host is every address.
func Loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
