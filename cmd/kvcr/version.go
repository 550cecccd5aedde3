package main

import (
	"runtime"
	"runtime/debug"
)

// version is set by the linker from git.
var version = ""

type versionCmd struct{}

func (versionCmd) Run(e *env) error {
	e.printf("kvcr %s %s %s/%s\n", versionText(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return nil
}

// versionText is the linker's version, else the module's.
func versionText() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
