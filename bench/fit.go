package bench

import "math"

// powerFit fits y = a * x^exponent by least squares of the logarithms. r2 is the share
// of the variance that this explains: near 0 where y does not depend on x. Points that
// have no logarithm are left out; without two different x there is no fit.
func powerFit(xs, ys []float64) (exponent, r2 float64, ok bool) {
	var n, sx, sy, sxx, sxy, syy float64
	for i, x := range xs {
		if x <= 0 || ys[i] <= 0 {
			continue
		}
		lx, ly := math.Log(x), math.Log(ys[i])
		n, sx, sy = n+1, sx+lx, sy+ly
		sxx, sxy, syy = sxx+lx*lx, sxy+lx*ly, syy+ly*ly
	}
	vx, vxy, vy := sxx-sx*sx/max(n, 1), sxy-sx*sy/max(n, 1), syy-sy*sy/max(n, 1)
	const none = 1e-12 // of rounding
	if vx < none {
		return 0, 0, false
	}
	if vy < none {
		return vxy / vx, 1, true // they lie on a line, which is level
	}
	return vxy / vx, vxy * vxy / (vx * vy), true
}
