package memfd

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// What is not a memfd of fixed length, and long enough, is not mapped.
func TestMap(t *testing.T) {
	make := func(size int64, seals int) *os.File {
		fd, err := unix.MemfdCreate("kvcr-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "memfd")
		t.Cleanup(func() { f.Close() })
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
		return f
	}
	file, err := os.CreateTemp(t.TempDir(), "file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	file.Truncate(8192)
	for _, tt := range []struct {
		name string
		f    *os.File
		size uint64
		ok   bool
	}{
		{"sealed", make(8192, unix.F_SEAL_SHRINK), 8192, true},
		{"longer than said", make(8192, unix.F_SEAL_SHRINK), 100, true},
		{"may be cut off", make(8192, unix.F_SEAL_GROW), 8192, false},
		{"shorter than said", make(4096, unix.F_SEAL_SHRINK), 8192, false},
		{"far shorter", make(4096, unix.F_SEAL_SHRINK), 1 << 63, false},
		{"nothing", make(0, unix.F_SEAL_SHRINK), 0, false},
		{"a file", file, 8192, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mem, err := Map(tt.f, tt.size, unix.PROT_READ)
			if tt.ok != (err == nil) || err != nil && !errors.Is(err, ErrUnsealed) {
				t.Fatalf("%v", err)
			}
			if err == nil {
				if uint64(len(mem)) < tt.size {
					t.Errorf("%d bytes", len(mem))
				}
				unix.Munmap(mem)
			}
		})
	}
}
