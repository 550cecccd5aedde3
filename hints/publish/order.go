package publish

// order returns all indices of parents so that each comes after its parent, and
// chains stay together where they can. parents[i] is the index of i's parent, or
// negative. Of a circle, which no engine has, one member comes before its parent.
func order(parents []int32) []int32 {
	n := len(parents)
	child, sibling := make([]int32, n), make([]int32, n) // one more than an index; 0: none
	for i := n - 1; i >= 0; i-- {                        // so that children come in order
		if p := parents[i]; p >= 0 {
			sibling[i], child[p] = child[p], int32(i+1)
		}
	}
	out := make([]int32, 0, n)
	done := make([]bool, n)
	var stack []int32
	walk := func(root int32) {
		stack = append(stack[:0], root)
		for len(stack) > 0 {
			i := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			// The chain from here on; what branches off it waits.
			for {
				if done[i] {
					break
				}
				done[i] = true
				out = append(out, i)
				c := child[i]
				if c == 0 {
					break
				}
				if more := sibling[c-1]; more != 0 {
					for m := more; m != 0; m = sibling[m-1] {
						stack = append(stack, m-1)
					}
				}
				i = c - 1
			}
		}
	}
	for i, p := range parents {
		if p < 0 {
			walk(int32(i))
		}
	}
	for i := range parents {
		if !done[i] {
			walk(int32(i))
		}
	}
	return out
}
