// Runc, asked for no more than this machine has to give.
//
// Docker gives a privileged container every capability there is, and some processes a lower oom_score_adj than their
// parent's. On a machine without all capabilities (in many virtual machines and containers), runc refuses both. This
// program stands before runc on PATH, takes what is not to be had out of what runc will read, and becomes the next
// runc on PATH.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// By their number in the kernel.
var capabilities = []string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
	"LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
	"SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
	"SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
	"MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
	"CHECKPOINT_RESTORE",
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "runc wrapper:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	for i, argument := range arguments[:max(len(arguments)-1, 0)] {
		var err error
		switch argument {
		case "--bundle":
			err = rewrite(filepath.Join(arguments[i+1], "config.json"), func(content map[string]any) map[string]any {
				process, _ := content["process"].(map[string]any)
				return process
			})
		case "--process":
			err = rewrite(arguments[i+1], func(content map[string]any) map[string]any { return content })
		}
		if err != nil {
			return err
		}
	}
	next, err := nextRunc()
	if err != nil {
		return err
	}
	return syscall.Exec(next, append([]string{next}, arguments...), os.Environ())
}

func rewrite(file string, processOf func(map[string]any) map[string]any) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	content := map[string]any{}
	if err := decoder.Decode(&content); err != nil {
		return err
	}
	bounds, err := bounding()
	if err != nil {
		return err
	}
	restrict(processOf(content), bounds, ownScore())
	text, err = json.Marshal(content)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

func restrict(process map[string]any, bounds uint64, score int64) {
	sets, _ := process["capabilities"].(map[string]any)
	for name, each := range sets {
		wanted, _ := each.([]any)
		sets[name] = slices.DeleteFunc(wanted, func(capability any) bool {
			number := slices.Index(capabilities, strings.TrimPrefix(fmt.Sprint(capability), "CAP_"))
			return number < 0 || bounds&(1<<number) == 0
		})
	}
	if wanted, ok := process["oomScoreAdj"].(json.Number); ok && bounds&(1<<24) == 0 {
		if number, err := wanted.Int64(); err == nil && number < score {
			process["oomScoreAdj"] = score
		}
	}
}

// The capabilities that any process started from here can have.
func bounding() (uint64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, found := strings.CutPrefix(line, "CapBnd:"); found {
			return strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no CapBnd")
}

func ownScore() int64 {
	text, _ := os.ReadFile("/proc/self/oom_score_adj")
	number, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return number
}

func nextRunc() (string, error) {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return "", err
	}
	for _, folder := range filepath.SplitList(os.Getenv("PATH")) {
		file := filepath.Join(folder, "runc")
		found, err := os.Stat(file)
		if err == nil && !found.IsDir() && !os.SameFile(found, self) {
			return file, nil
		}
	}
	return "", fmt.Errorf("no other runc on PATH=%s", os.Getenv("PATH"))
}
