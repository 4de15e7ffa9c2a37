"""What a benchmark was measured on and with, in words."""

import os

import pooler


def describe(options, server=None, runs=()):
    """Lines for NAME-machine.txt."""
    lines = [f"Measured {options.machine}", scheduling(), f"Source: {options.commit or 'no version known'}."]
    if server:
        lines += [
            f"Settings other than the default: {server.differing_settings()}.",
            f"Memory of the server in huge pages: {server.huge_pages()} MB.",
        ]
    if runs:
        lines.append(counted(options, runs))
    if any(run.variant.is_pooler for run in runs):
        lines.append(pgbouncer())
    if options.settings:
        lines.append("tuned: " + ", ".join(f"{name} = {value}" for name, value in options.settings) + ".")
    if options.quick:
        lines.append("A quick run: it shows that the benchmark works, the figures mean nothing.")
    return lines


def counted(options, runs):
    seconds = join({run.duration for run in runs})
    skipped = join({run.skip for run in runs})
    return f"{rounds_text(runs)}; counted {seconds} s of each run, after {skipped} s in which all clients are at work."


def rounds_text(runs):
    """Such as "3 rounds (4000 clients: 1)"."""
    rounds = {}
    for run in runs:
        rounds[run.clients] = max(run.round, rounds.get(run.clients, 0))
    most = max(rounds.values())
    fewer = {
        number: join(clients for clients in rounds if rounds[clients] == number)
        for number in sorted(set(rounds.values()) - {most})
    }
    text = f"{most} round{'s' * (most > 1)}"
    if fewer:
        text += " (" + ", ".join(f"{clients} clients: {number}" for number, clients in fewer.items()) + ")"
    return text


def join(numbers):
    return " or ".join(str(number) for number in sorted(numbers))


def pgbouncer():
    version = "pgbouncer {}.{}".format(*pooler.pgbouncer_version())
    if pooler.keeps_prepared_statements():
        return version + ", with prepared statements."
    return version + ", which keeps no prepared statements in transaction mode: simple protocol there."


def scheduling():
    if autogroups():
        return "The kernel shares the CPU by sessions (autogroup): each backend counts as much as the whole of pgbench."
    return "The kernel shares the CPU by processes."


def autogroups():
    """Whether they are on, and not overruled by a control group for the CPU."""
    return contents("/proc/sys/kernel/sched_autogroup_enabled").strip() == "1" and not in_cpu_group()


def in_cpu_group():
    for line in contents("/proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return path != "/"
        if number == "0" and has_weight(path):
            return True
    return False


def has_weight(path):
    """Whether the group, or one that it is in, has a share of the CPU."""
    while path != "/":
        if os.path.exists(f"/sys/fs/cgroup{path}/cpu.weight"):
            return True
        path = os.path.dirname(path)
    return False


def contents(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def write(name, options, server=None, runs=()):
    with open(options.path("results", f"{name}-machine.txt"), "w") as file:
        file.write("\n".join(describe(options, server, runs)) + "\n")
