"""GPUs that are on the PCI bus but cannot be used: an error with node and reason, no silent CPU run.
The bus is a tree of files that looks like one (DGXRUN_SYSFS)."""

import os

import pytest


def fake_bus(workspace, gpus):
    """A sysfs with that many NVIDIA devices of a display class, and a network card of the same vendor."""
    root = workspace.folder("sysfs")
    devices = [("0x030200", f"0000:{0x1B + i:02x}:00.0") for i in range(gpus)] + [("0x020700", "0000:90:00.0")]
    for kind, address in devices:
        folder = os.path.join(root, "bus/pci/devices", address)
        os.makedirs(folder)
        for name, value in (("vendor", "0x10de"), ("class", kind), ("device", "0x2330")):
            with open(os.path.join(folder, name), "w", encoding="ascii") as file:
                file.write(value + "\n")
    workspace.env["DGXRUN_SYSFS"] = root


@pytest.mark.parametrize("kind", ["local", "dev"])
def test_gpus_without_a_driver_are_an_error(workspace, leaks, kind):
    fake_bus(workspace, 2)
    program = workspace.write("x.py", "print('ran')\n")
    if kind == "dev":
        workspace.run("dev", "up", "-n", 1)
    done = workspace.run(*(["-n", 1] if kind == "dev" else []), "-g", 2, program, expect=78)
    assert "ran" not in done.stdout
    assert "no NVIDIA device on the PCI bus" not in done.stderr
    assert "libnvidia-ml" in done.stderr or "driver" in done.stderr
    if kind == "dev":
        assert "node1" in done.stderr
        workspace.run("dev", "down")


def test_cpu_when_asked_for(local):
    workspace = local.workspace
    fake_bus(workspace, 2)
    program = workspace.write("x.py", "import os; print('ran', os.environ.get('CUDA_VISIBLE_DEVICES'))\n")
    done = workspace.run("-g", 2, "--device", "cpu", program)
    assert done.stdout.count("ran") == 2


def test_no_nvidia_gpu_means_cpu_and_one_line(local):
    workspace = local.workspace
    fake_bus(workspace, 0)
    program = workspace.write("x.py", "print('ran')\n")
    done = workspace.run("-g", 2, program)
    assert done.stdout.count("ran") == 2
    assert done.stderr.count("no NVIDIA device on the PCI bus: ranks run on the CPU") == 1


def test_gpu_asked_for_where_none_is(local):
    workspace = local.workspace
    fake_bus(workspace, 0)
    program = workspace.write("x.py", "print('ran')\n")
    done = workspace.run("--device", "gpu", program, expect=78)
    assert "no NVIDIA device" in done.stderr and "ran" not in done.stdout


def test_all_gpus_where_none_is(local):
    workspace = local.workspace
    fake_bus(workspace, 0)
    program = workspace.write("x.py", "print('ran')\n")
    done = workspace.run("-g", "all", program, expect=78)
    assert "GPU" in done.stderr and "ran" not in done.stdout
