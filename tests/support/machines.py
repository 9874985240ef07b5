"""Machines made of files: what the kernel would report in /sys and /proc, written below a test's directory."""

import itertools

CPUS = "sys/devices/system/cpu"


def write(root, files):
    """Write {path: text} below a directory."""
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return str(root)


def write_machine(root, n_packages, n_cores, n_threads, *, numbering="apart", cores_per_cache=None, offline=()):
    """Write a machine of `n_packages` packages, each a NUMA node, with `n_cores` cores of `n_threads` threads.

    numbering: how CPUs are numbered: siblings "apart" (Intel), "adjacent" (virtual machines), or "alternating" between
    the packages. cores_per_cache: how many cores share a last-level cache; None: all of a package.
    """
    number = {
        "apart": lambda package, core, thread: (thread * n_packages + package) * n_cores + core,
        "adjacent": lambda package, core, thread: (package * n_cores + core) * n_threads + thread,
        "alternating": lambda package, core, thread: (thread * n_cores + core) * n_packages + package,
    }[numbering]
    places = {number(*place): place for place in itertools.product(*map(range, (n_packages, n_cores, n_threads)))}
    online = [n for n in sorted(places) if n not in offline]

    def listed(key):
        """Return, for each CPU, the CPUs with the same key, in the kernel's format."""
        groups = {}
        for n in online:
            groups.setdefault(key(*places[n]), []).append(n)
        return {n: ranges(group) for group in groups.values() for n in group}

    siblings = listed(lambda package, core, thread: (package, core))
    sharers = listed(lambda package, core, thread: (package, core // (cores_per_cache or n_cores)))
    nodes = listed(lambda package, core, thread: package)
    files = {f"{CPUS}/online": ranges(online), f"{CPUS}/possible": ranges(sorted(places))}
    files |= {f"{CPUS}/cpu{n}/online": "0" for n in offline}
    for n in online:
        package, core, _ = places[n]
        files |= {
            f"{CPUS}/cpu{n}/topology/core_cpus_list": siblings[n],
            f"{CPUS}/cpu{n}/topology/core_id": core,
            f"{CPUS}/cpu{n}/topology/physical_package_id": package,
            f"sys/devices/system/node/node{package}/cpulist": nodes[n],
        }
        for index, (level, kind, shared) in enumerate([(1, "Data", siblings[n]), (3, "Unified", sharers[n])]):
            directory = f"{CPUS}/cpu{n}/cache/index{index}"
            files |= {f"{directory}/level": level, f"{directory}/type": kind, f"{directory}/shared_cpu_list": shared}
    return write(root, files)


def ranges(numbers):
    """Format numbers as the kernel does: "0-3,8"."""
    runs = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def mountinfo(*mounts):
    """The text of /proc/self/mountinfo. mounts: (type, root, mount point, options)."""
    lines = ["22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw", "23 22 0:21 / /proc rw shared:5 - proc proc rw"]
    for n, (kind, top, point, options) in enumerate(mounts, 24):
        lines.append(f"{n} 22 0:{n} {top} {point} rw,nosuid shared:{n} - {kind} {kind} {options}")
    return "\n".join(lines)
