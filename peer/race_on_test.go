//go:build race

package peer

const raceBuild = true
