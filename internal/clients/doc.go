// Package clients drives a node with client libraries that the node itself must
// not depend on. It is a module of its own and has nothing but tests:
//
//	cd internal/clients && go test ./...
package clients
