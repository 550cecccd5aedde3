package arena

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Every arena file has a name that begins and ends like this. Only such files
// are ever removed, and only when no process holds their lock.
const (
	FilePrefix = "kvcr-"
	FileSuffix = ".arena"
)

// fileSerial tells the files of one process apart. Own word: no ordering.
var fileSerial atomic.Uint64

func ours(name string) bool {
	return strings.HasPrefix(name, FilePrefix) && strings.HasSuffix(name, FileSuffix)
}

// file is an arena's file, created and locked by this process.
//
// The lock, flock(2), is on the open file: it goes when the process dies, by
// whatever death, and then a starter may remove the file. The descriptor is
// close-on-exec, so that no child keeps the lock alive.
//
// Invariant: whoever unlinks a file holds its lock, and has looked since that
// the name still leads to it. So nobody removes a file that another process has
// made under the same name in the meantime.
type file struct {
	fd   int
	path string
}

// createFile makes and locks the file for o and returns it with the paths of
// the dead files it removed. dir is the directory, free of symbolic links.
func createFile(o *Options) (f file, dir string, removed []string, err error) {
	fail := func(op, path string, err error) (file, string, []string, error) {
		return file{fd: -1}, dir, removed, &MapError{Name: o.Name, Op: op, Size: o.Size, Path: path, Err: err}
	}
	path, err := filepath.Abs(o.Path)
	if err != nil {
		return fail("find", o.Path, err)
	}
	name := ""
	if st, err := os.Stat(path); err != nil || !st.IsDir() {
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fail("stat", path, err)
		}
		path, name = filepath.Dir(path), filepath.Base(path)
		if !ours(name) {
			return file{fd: -1}, dir, nil, &OptionError{Field: "Path", Value: o.Path,
				Fix: fmt.Sprintf("name a directory, or a file like %spool%s: by its name a file left by a dead process is recognised", FilePrefix, FileSuffix)}
		}
	}
	if dir, err = filepath.EvalSymlinks(path); err != nil {
		return fail("find", path, err)
	}
	removed = removeDead(dir)
	// A starter that runs right now may see our file before we hold its lock,
	// and remove it; then we make another. More than a few such meetings in a
	// row have another cause.
	for try := 0; ; try++ {
		n := name
		if n == "" {
			n = fmt.Sprintf("%s%s-%d-%d%s", FilePrefix, cleanName(o.Name), os.Getpid(), fileSerial.Add(1), FileSuffix)
		}
		path = filepath.Join(dir, n)
		fd, err := openRetry(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
		if err == unix.EEXIST && name == "" && try < 100 {
			continue // another container's process with our number, on the same file system
		}
		if err == unix.EEXIST {
			return fail("create", path, fmt.Errorf("%w, and a living process holds it: choose another path", err))
		}
		if err != nil {
			return fail("create", path, err)
		}
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && leadsTo(path, fd) {
			return file{fd: fd, path: path}, dir, removed, nil
		}
		unix.Close(fd)
		if err != nil && err != unix.EWOULDBLOCK {
			_ = unix.Unlink(path)
			return fail("lock", path, err)
		}
		if try >= 100 {
			return fail("lock", path, errors.New("removed by another process again and again"))
		}
	}
}

// remove takes the file away and closes it. It is safe to call for a file that
// somebody else has unlinked or replaced.
func (f file) remove() error {
	var err error
	if leadsTo(f.path, f.fd) {
		err = unix.Unlink(f.path)
	}
	return errors.Join(err, unix.Close(f.fd))
}

// removeDead removes the arena files in dir whose owner is dead and returns
// their paths. What it may not open or cannot lock stays.
func removeDead(dir string) (removed []string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // creating the file will say why
	}
	for _, e := range entries {
		if !ours(e.Name()) || !e.Type().IsRegular() {
			continue
		}
		path := filepath.Join(dir, e.Name())
		fd, err := openRetry(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil && leadsTo(path, fd) {
			if unix.Unlink(path) == nil {
				removed = append(removed, path)
			}
		}
		unix.Close(fd)
	}
	return removed
}

// leadsTo reports whether path names the regular file that fd has open.
func leadsTo(path string, fd int) bool {
	var a, b unix.Stat_t
	return unix.Lstat(path, &a) == nil && unix.Fstat(fd, &b) == nil &&
		a.Dev == b.Dev && a.Ino == b.Ino && a.Mode&unix.S_IFMT == unix.S_IFREG
}

func openRetry(path string, flags int, mode uint32) (fd int, err error) {
	for {
		if fd, err = unix.Open(path, flags, mode); err != unix.EINTR {
			return fd, err
		}
	}
}

// freeSpace returns the bytes free on the file system of fd, -1 when it sets no
// limit or does not say.
func freeSpace(fd int) int64 {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil || int64(st.Blocks) <= 0 || int64(st.Bavail) < 0 {
		return -1
	}
	return int64(st.Bavail) * int64(st.Bsize)
}
