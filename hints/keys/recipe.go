package keys

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Recipe names how keys are made, by every engine that shares a namespace. Its text
// is
//
//	style/hash[-seed]/[low64/]bsN[/option ...]
//
//	dynamo/xxh3-1337/bs64          vllm/sha256/low64/bs16
//	dynamo/xxh3-1337/bs16/eagle    vllm/xxhash_cbor-42/low64/bs16/group
//
// where low64 says what routers see of a digest, and options stand in the order of
// the fields here.
type Recipe struct {
	Style string // "dynamo" or "vllm"
	// Hash is the hash function: "xxh3" of dynamo; of vLLM, by its own names,
	// "sha256", "sha256_cbor", "xxhash", "xxhash_cbor".
	Hash string
	// Seed is the seed in the form it is configured (vLLM: PYTHONHASHSEED). Empty:
	// the default, which only SHA-256 has; the others are random for each process
	// without a seed, and no two processes would make the same keys.
	Seed      string
	BlockSize int // tokens
	Eagle     bool
	Local     bool // Dynamo.WithLocal
	Group     bool // VLLM.WithGroup
}

var recipeHashes = map[string][]string{
	"dynamo": {"xxh3"},
	"vllm":   {"sha256", "sha256_cbor", "xxhash", "xxhash_cbor"},
}

const maxRecipeBlock = 1 << 20

// Check reports what is wrong with the recipe, as an *Error.
func (r Recipe) Check() error {
	hashes, ok := recipeHashes[r.Style]
	switch {
	case !ok:
		return &Error{"recipe style", strconv.Quote(r.Style), "dynamo or vllm", "name one of them"}
	case !slices.Contains(hashes, r.Hash):
		return &Error{"recipe hash", strconv.Quote(r.Hash), "of " + r.Style + ": " + strings.Join(hashes, ", "), "name one of them"}
	case r.BlockSize < 1 || r.BlockSize > maxRecipeBlock:
		return &Error{"recipe block size", r.BlockSize, fmt.Sprintf("1 to %d tokens", maxRecipeBlock), "give the engine's block size"}
	case r.Seed == "" && !strings.HasPrefix(r.Hash, "sha256"):
		return &Error{"recipe seed", `""`, r.Hash + " has no default seed", "set one (dynamo: 1337; vLLM: PYTHONHASHSEED) for all processes, and name it"}
	case len(r.Seed) > 64 || strings.ContainsFunc(r.Seed, func(c rune) bool { return c <= ' ' || c > '~' || c == '/' || c == '=' }):
		return &Error{"recipe seed", strconv.Quote(r.Seed), "at most 64 printable letters without / and =", "choose another seed"}
	case r.Local && r.Style != "dynamo":
		return &Error{"recipe option", "local", "of dynamo only", "leave it out"}
	case r.Group && r.Style != "vllm":
		return &Error{"recipe option", "group", "of vllm only", "leave it out"}
	}
	return nil
}

func (r Recipe) String() string {
	s := r.Style + "/" + r.function()
	if r.Style == "vllm" {
		s += "/low64"
	}
	s += "/bs" + strconv.Itoa(r.BlockSize)
	if o := r.options(); o != "" {
		s += "/" + o
	}
	return s
}

func (r Recipe) function() string {
	if r.Seed == "" {
		return r.Hash
	}
	return r.Hash + "-" + r.Seed
}

func (r Recipe) options() string {
	var o []string
	for _, opt := range []struct {
		on   bool
		name string
	}{{r.Eagle, "eagle"}, {r.Local, "local"}, {r.Group, "group"}} {
		if opt.on {
			o = append(o, opt.name)
		}
	}
	return strings.Join(o, "/")
}

// ParseRecipe reads a recipe's text. An accepted text is that of the recipe's
// String.
func ParseRecipe(text string) (Recipe, error) {
	bad := func() (Recipe, error) {
		return Recipe{}, &Error{"recipe", strconv.Quote(clip(text)), "style/hash[-seed]/[low64/]bsN[/option ...]", "write it like dynamo/xxh3-1337/bs64 or vllm/sha256/low64/bs16"}
	}
	if len(text) > 256 {
		return bad()
	}
	f := strings.Split(text, "/")
	if len(f) < 3 {
		return bad()
	}
	var r Recipe
	r.Style = f[0]
	r.Hash, r.Seed, _ = strings.Cut(f[1], "-")
	f = f[2:]
	if r.Style == "vllm" {
		f = f[1:] // low64, which the comparison below checks
	}
	if len(f) == 0 || !strings.HasPrefix(f[0], "bs") {
		return bad()
	}
	n, err := strconv.Atoi(f[0][2:])
	if err != nil {
		return bad()
	}
	r.BlockSize = n
	for _, o := range f[1:] {
		switch o {
		case "eagle":
			r.Eagle = true
		case "local":
			r.Local = true
		case "group":
			r.Group = true
		default:
			return bad()
		}
	}
	if err := r.Check(); err != nil {
		return Recipe{}, err
	}
	if r.String() != text {
		return bad()
	}
	return r, nil
}

func clip(s string) string { return s[:min(len(s), 64)] }

// Difference names each field in which two recipes differ, with both values. Empty:
// they are the same.
func (r Recipe) Difference(theirs Recipe) string {
	var out []string
	for _, f := range []struct{ name, ours, theirs string }{
		{"style", r.Style, theirs.Style},
		{"hash", r.Hash, theirs.Hash},
		{"seed", r.Seed, theirs.Seed},
		{"block size", strconv.Itoa(r.BlockSize), strconv.Itoa(theirs.BlockSize)},
		{"options", r.options(), theirs.options()},
	} {
		if f.ours != f.theirs {
			out = append(out, fmt.Sprintf("%s: ours %q, theirs %q", f.name, f.ours, f.theirs))
		}
	}
	return strings.Join(out, "; ")
}

// recipeField is the recipe's name among the fields of a layout.
const recipeField = "hash recipe"

// Describe adds the recipe to the description of a namespace's layout
// (wire.Layout.Describe): a field more, which the fingerprint of the text covers and
// which is named, with both values, where two nodes differ.
func (r Recipe) Describe(layout string) string {
	if layout != "" {
		layout += "\n"
	}
	return layout + recipeField + "=" + r.String()
}

// Hasher returns a Hasher of dynamo's recipe, for blocks under a LoRA adapter and in
// a cache namespace; either may be empty. vLLM's digests are the engine's to make.
func (r Recipe) Hasher(lora, cacheNamespace string) (*Hasher, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	if r.Style != "dynamo" || r.Seed != strconv.Itoa(Seed) {
		return nil, &Error{"recipe", r.String(), "only dynamo/xxh3-1337 is hashed here", "take the engine's own keys"}
	}
	return &Hasher{BlockSize: r.BlockSize, Seed: BlockSeed(lora, cacheNamespace), Eagle: r.Eagle}, nil
}

// Keys returns the style of the recipe's keys.
func (r Recipe) Keys() (Style, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	if r.Style == "dynamo" {
		return Dynamo{WithLocal: r.Local}, nil
	}
	v := VLLM{WithGroup: r.Group}
	if strings.HasPrefix(r.Hash, "sha256") {
		v.DigestBytes = 32
	}
	return v, nil
}
