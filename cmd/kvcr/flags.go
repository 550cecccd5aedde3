package main

import (
	"reflect"
)

// engineFlags are the settings as flags. Each is a string, nil when not given:
// settings.go knows their meaning and defaults.
type engineFlags struct {
	File string `name:"config" placeholder:"FILE" help:"YAML file with settings (also KVCR_CONFIG)."`

	Capacity         *string `group:"Engine" placeholder:"SIZE" help:"Payload memory (auto: what the machine leaves)."`
	Block            *string `group:"Engine" placeholder:"SIZE" help:"Bytes of one block; 0 for size classes."`
	Kind             *string `group:"Engine" placeholder:"KIND" help:"flat or chained."`
	Policy           *string `group:"Engine" placeholder:"NAME" help:"Eviction policy."`
	MaxValue         *string `group:"Engine" placeholder:"SIZE" help:"Largest value of size classes."`
	MeanValue        *string `group:"Engine" placeholder:"SIZE" help:"Expected value size."`
	MaxBlocks        *string `group:"Engine" placeholder:"N" help:"Largest number of blocks."`
	Checksums        *string `group:"Engine" placeholder:"MODE" help:"on, off or auto."`
	VerifyReads      *string `group:"Engine" placeholder:"BOOL" help:"Check copies against their checksum."`
	Watermark        *string `group:"Engine" placeholder:"PERCENT" help:"Pressure watermark."`
	Shards           *string `group:"Engine" placeholder:"N" help:"Shards of a flat namespace."`
	Pin              *string `group:"Engine" placeholder:"CPUS" help:"CPUs for pinned owners."`
	Pages            *string `group:"Engine" placeholder:"KIND" help:"auto, 1G, 2M, thp, base."`
	StrictPages      *string `group:"Engine" placeholder:"BOOL" help:"Refuse other pages."`
	Backing          *string `group:"Engine" placeholder:"KIND" help:"anonymous, memfd or file."`
	Path             *string `group:"Engine" placeholder:"PATH" help:"Place of file backing."`
	Numa             *string `group:"Engine" placeholder:"MODE:NODES" help:"Memory nodes."`
	Lock             *string `group:"Engine" placeholder:"BOOL" help:"Lock payload memory."`
	Prefault         *string `group:"Engine" placeholder:"BOOL" help:"Touch all memory at start."`
	MaxHandles       *string `group:"Engine" placeholder:"N" help:"Handles open at once."`
	OperationTimeout *string `group:"Engine" placeholder:"DURATION" help:"Time for remote fetches."`
	Seed             *string `group:"Engine" placeholder:"N" help:"Seed of sampling."`
}

// given returns the flags that were set, by name.
func (f *engineFlags) given() map[string]string {
	out := map[string]string{}
	v := reflect.ValueOf(f).Elem()
	for i := range v.NumField() {
		if p, ok := v.Field(i).Interface().(*string); ok && p != nil {
			out[kebab(v.Type().Field(i).Name)] = *p
		}
	}
	return out
}

// kebab turns MaxValue into max-value, as kong does for flags.
func kebab(name string) string {
	var out []byte
	for i, c := range []byte(name) {
		if c >= 'A' && c <= 'Z' {
			if i > 0 {
				out = append(out, '-')
			}
			c += 'a' - 'A'
		}
		out = append(out, c)
	}
	return string(out)
}

// resolve merges flags, environment and file.
func (f *engineFlags) resolve(e *env) (values, *engineConfig, error) {
	vs, cfg, err := resolve(f.given(), e.environ, e.configFile(f.File))
	if err != nil {
		return nil, nil, usageError{err}
	}
	return vs, cfg, nil
}
