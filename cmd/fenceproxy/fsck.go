package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/fenceproxy/fenceproxy/backends/file"
)

// Exit codes of fsck, besides 0.
const (
	exitFindings = 1 // findings of the levels error and mend are left
	exitNoCheck  = 2 // not everything could be checked, so nothing is known
)

// An exitError ends the process with a code of its own.
type exitError struct {
	code int
	error
}

func (e *exitError) Unwrap() error { return e.error }

// exitCode is what a process ends with that met err.
func exitCode(err error) int {
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	return 1
}

// A finding is one line of fsck.
type finding struct {
	Level    file.Level `json:"level"`
	What     string     `json:"what"`
	Where    string     `json:"where"`
	Repair   string     `json:"repair"`   // what --repair does where the level is mend; else what to do by hand
	Repaired bool       `json:"repaired"` // --repair has done it
	Failed   string     `json:"failed"`   // why --repair could not

	mend func(context.Context) error
}

func (f finding) repair() string {
	switch {
	case f.Repaired:
		return "done: " + f.Repair
	case f.Failed != "":
		return "failed: " + f.Repair + ": " + f.Failed
	case f.Level == file.Mend:
		return "--repair: " + f.Repair
	case f.Repair != "":
		return "by hand: " + f.Repair
	}
	return ""
}

var findingListing = listing[finding]{
	table: []column[finding]{
		{"LEVEL", func(f finding) string { return string(f.Level) }},
		{"WHAT", func(f finding) string { return f.What }},
		{"WHERE", func(f finding) string { return f.Where }},
		{"REPAIR", finding.repair},
	},
	csv: []column[finding]{
		{"level", func(f finding) string { return string(f.Level) }},
		{"what", func(f finding) string { return f.What }},
		{"where", func(f finding) string { return f.Where }},
		{"repair", func(f finding) string { return f.Repair }},
		{"repaired", func(f finding) string { return fmt.Sprint(f.Repaired) }},
		{"failed", func(f finding) string { return f.Failed }},
	},
	none: "Everything on the disk is as it should be.",
}

type fsckFlags struct {
	config          string
	repair          bool
	unsafeNetworkFS bool
}

func newFsckCommand() *cobra.Command {
	var f fsckFlags
	cmd := &cobra.Command{
		Use:   "fsck",
		Short: "Check what is on the disk while no proxy runs",
		Long: `Checks the token registry, the audit log and every file store of a proxy that does not run. It tells one finding a line:

  error  a promise is broken, or the next start will fail: to be mended by hand
  mend   a harmless left-over, such as a kill leaves: --repair removes it
  note   something to know, such as an object that another program has changed

Without --repair nothing is changed, but the note in the file "lock" and the index of a SQLite log that a kill has left
(-shm). No object is ever removed and no token lowered. S3 backends are not asked.

Exit codes: 0 nothing was found, or only notes; 1 findings are left; 2 it could not be checked.`,
		Args: func(cmd *cobra.Command, args []string) error { return notChecked(cobra.NoArgs(cmd, args)) },
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return notChecked(err) })
	addConfigFlag(cmd, &f.config)
	addFormatFlag(cmd)
	cmd.Flags().BoolVar(&f.repair, "repair", false, "do what the findings of the level mend say, and tell them again")
	cmd.Flags().BoolVar(&f.unsafeNetworkFS, "unsafe-network-fs", false, "check directories on network file systems, where another machine may be writing")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return runFsck(cmd, f) }
	return cmd
}

func notChecked(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{exitNoCheck, err}
}

func runFsck(cmd *cobra.Command, f fsckFlags) error {
	format, err := formatOf(cmd)
	if err != nil {
		return notChecked(err)
	}
	c, err := loadConfig(f.config, os.LookupEnv)
	if err != nil {
		return notChecked(err)
	}
	findings, err := fsck(cmd.Context(), c, f)
	if err != nil {
		return notChecked(err)
	}
	if err := findingListing.print(cmd.OutOrStdout(), format, findings); err != nil {
		return notChecked(err)
	}
	return judgeFindings(findings)
}

// judgeFindings is nil if nothing is left but notes.
func judgeFindings(findings []finding) error {
	errs, mends := 0, 0
	for _, f := range findings {
		switch {
		case f.Level == file.Error:
			errs++
		case f.Level == file.Mend && !f.Repaired:
			mends++
		}
	}
	if errs+mends == 0 {
		return nil
	}
	return &exitError{exitFindings, fmt.Errorf("findings are left: %d errors, and %d left-overs that --repair removes", errs, mends)}
}
