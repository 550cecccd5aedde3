//go:build race

package model

// racing builds skip what would take minutes: nothing here runs concurrently.
const racing = true
