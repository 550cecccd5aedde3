// Package publish tells routers what an engine holds.
package publish
