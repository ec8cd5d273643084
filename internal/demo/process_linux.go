package demo

import "syscall"

// endWithParent has the kernel end a process when the demo dies without having ended it: by SIGKILL, or a panic outside of the story.
func endWithParent(a *syscall.SysProcAttr, end syscall.Signal) { a.Pdeathsig = end }
