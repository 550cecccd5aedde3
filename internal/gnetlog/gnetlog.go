// Package gnetlog passes what gnet has to say to a log, as details.
package gnetlog

import (
	"fmt"
	"log/slog"
)

// Quiet is a gnet logger. Only what gnet is about to die of is more than a detail.
type Quiet struct{ Log *slog.Logger }

func (q Quiet) Debugf(f string, a ...any) { q.detail(f, a) }
func (q Quiet) Infof(f string, a ...any)  { q.detail(f, a) }
func (q Quiet) Warnf(f string, a ...any)  { q.detail(f, a) }
func (q Quiet) Errorf(f string, a ...any) { q.detail(f, a) }
func (q Quiet) Fatalf(f string, a ...any) { q.Log.Error("gnet: " + fmt.Sprintf(f, a...)) }

func (q Quiet) detail(f string, a []any) { q.Log.Debug("gnet: " + fmt.Sprintf(f, a...)) }
