package main
type replayCmd struct{}
func (replayCmd) Run(e *env) error { return nil }
type benchCmd struct{}
func (benchCmd) Run(e *env) error { return nil }
