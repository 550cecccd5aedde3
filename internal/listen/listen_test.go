package listen

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestRemoveStale(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	if err := RemoveStale(socket); err != nil {
		t.Errorf("nothing there: %v", err)
	}
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := RemoveStale(socket); err == nil {
		t.Error("a socket in use was removed")
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	ln.Close()
	if err := RemoveStale(socket); err != nil {
		t.Errorf("a stale socket: %v", err)
	}
	if _, err := os.Lstat(socket); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := RemoveStale(file); err == nil {
		t.Error("a file was taken for a socket")
	}
	if _, err := os.Lstat(file); err != nil {
		t.Errorf("and is gone: %v", err)
	}
}

func TestLoopback(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true,
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false, "example.com:1": false, "127.0.0.1": false,
	} {
		if got := Loopback(addr); got != want {
			t.Errorf("%s: %t", addr, got)
		}
	}
}
