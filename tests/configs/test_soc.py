# SPDX-License-Identifier: Apache-2.0
"""SoC files become `SocTiming`: every field filled and checked, then changed by options."""

import importlib.util
import re
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest

import configs
from arch.spec.soc_config import load_soc, parameter_types, with_values
from configs.errors import ConfigError, DoesNotFitError
from configs.library import list_names
from configs.parameters import NO_SOURCE, PROFILES, load_parameters
from configs.values import replace
from pulptrain.exploring.explore_spec import SETTINGS, SHORT_PATHS
from pulptrain.inputs.option import ALL
from pulptrain.inputs.settings import Settings, with_options

SOC_FOLDER = Path(configs.__file__).parent / "soc"


@pytest.mark.smoke
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", list_names("soc"))
def test_installed_socs_load(name, profile):
    soc = load_soc(name, profile)
    assert (soc.name, soc.profile) == (name, profile)
    for parameter in load_parameters(name, profile).values():
        assert len(parameter.description) > 10, parameter.path
        assert len(parameter.source) > 10, parameter.path
        assert parameter.source != NO_SOURCE, parameter.path


def test_parameters_and_fields_match():
    assert set(load_parameters("pulp-open")) == set(parameter_types())


def test_profiles_differ_where_hardware_and_simulator_do():
    rtl, gvsoc = load_soc("pulp-open", "rtl"), load_soc("pulp-open", "gvsoc")
    assert (rtl.core.mul_cycles, gvsoc.core.mul_cycles) == (1, 2)
    assert (rtl.fpu.mapping, gvsoc.fpu.mapping) == ("dynamic", "static")
    assert (rtl.l1.bank_conflicts, gvsoc.l1.bank_conflicts) == (True, False)
    assert gvsoc.l2.dma_read_latency_cycles == 0 < rtl.l2.dma_read_latency_cycles
    assert (rtl.l1.size_bytes, rtl.l2.size_bytes) == (65536, 1536 * 1024)
    assert rtl.l1_usable_bytes == 65536 - 2048 - 7 * 1024 - 2048
    assert gvsoc.l1_usable_bytes == 65536 - 2048 - 7 * 1024


def test_empty_fork_adds_up_to_the_measured_cycles():
    """Reference simulator: an empty fork takes 40 cycles on a team and 31 on the master alone."""
    unit = load_soc("pulp-open", "gvsoc").event_unit
    worker = unit.fork_push_cycles + unit.fork_worker_cycles
    assert max(unit.fork_master_cycles, worker) + unit.barrier_wake_cycles + unit.join_cycles == 40
    assert unit.fork_master_cycles + unit.barrier_wake_cycles + unit.join_cycles == 31


@pytest.mark.parametrize("size_bytes", [128, 192, 256, 512, 1024, 3072, 16384])
def test_isolated_read_adds_up_to_the_measured_cycles(size_bytes):
    """Reference simulator: a 1D transfer from L2 to L1 and the wait take 32 cycles more than its beats."""
    soc = load_soc("pulp-open", "gvsoc")
    dma = soc.dma
    to_first_beat = dma.command_latency_cycles + soc.l2.dma_read_latency_cycles + dma.first_beat_cycles
    beats = size_bytes // dma.l1_bytes_per_cycle
    last_beat = dma.program_1d_cycles + to_first_beat + beats - 1
    assert last_beat > dma.program_1d_cycles + dma.wait_check_cycles
    shortest = dma.program_1d_cycles + dma.wait_sleep_min_cycles
    assert max(shortest, last_beat + dma.wait_wake_cycles) == 32 + beats


def test_pulp_open_private_changes_only_fpus_and_conflicts():
    for profile in PROFILES:
        shared, private = load_parameters("pulp-open", profile), load_parameters("pulp-open-private", profile)
        changed = {path for path in shared if shared[path].value != private[path].value}
        assert {"fpu.mapping", "fpu.count"} <= changed <= {"fpu.mapping", "fpu.count", "l1.bank_conflicts"}
        soc = load_soc("pulp-open-private", profile)
        assert (soc.fpu.mapping, soc.fpu.count, soc.l1.bank_conflicts) == ("private", 8, True)


def test_private_fpus_follow_the_cores():
    assert load_soc("pulp-open-private", overrides={"cores": "3"}).fpu.count == 3
    soc = with_options(load_soc("pulp-open-private"), cores=5)
    assert (soc.cores, soc.fpu.count) == (5, 5)
    assert with_options(load_soc(), cores=5).fpu.count == 4


def test_options():
    soc = load_soc()
    changed = with_options(soc, cores=2, l1="32KiB", l2=65536, fpus="2-static", bank_conflicts="off")
    assert (changed.cores, changed.l1.size_bytes, changed.l2.size_bytes) == (2, 32768, 65536)
    assert (changed.fpu.mapping, changed.fpu.count, changed.l1.bank_conflicts) == ("static", 2, False)
    assert with_options(soc) == soc
    assert with_options(soc, fpus="private").fpu.count == 8
    # Everything else is untouched.
    assert replace(changed, cores=8, l1=soc.l1, l2=soc.l2, fpu=soc.fpu) == soc


@pytest.mark.parametrize(
    "key", [key for key, option in ALL.items() if option.path and key not in SHORT_PATHS]
)
def test_an_option_changes_what_its_entry_names(key):
    # Nothing else of an option of the SoC is written anywhere: a new one needs its entry only.
    others = {"cores": 4, "fpus": "2-static", "bank_conflicts": "off", "freq": "100MHz", "form": "readable"}
    several = {
        "fpus": {"fpu.mapping", "fpu.count"},
        "freq": {"clock.cluster_hz", "clock.soc_hz"},
        "form": {"l1.tables_bytes"},
    }
    changed = flat(with_options(load_soc(), **{key: others.get(key, "200KiB")}))
    differing = {name for name, value in flat(load_soc()).items() if changed[name] != value}
    assert differing == several.get(key, {ALL[key].path})
    assert key in SETTINGS
    assert getattr(Settings(**{key: others.get(key, "200KiB")}), key) != getattr(Settings(), key)


def test_values_by_path_are_read_as_their_names_say():
    soc = with_values(load_soc(), {"icache.shared_bytes": "8 KiB", "core.jump_stall_cycles": 0})
    assert (soc.icache.shared_bytes, soc.core.jump_stall_cycles) == (8192, 0)
    with pytest.raises(ConfigError, match="must be at least 1") as caught:
        with_values(soc, {"l1.banks": 0}, {"l1.banks": "--banks"})
    assert caught.value.where == "--banks"


def flat(soc):
    return {path: attrgetter(path)(soc) for path in parameter_types()}


@pytest.mark.parametrize(
    ("options", "where", "message"),
    [
        ({"cores": 0}, "--cores", "cores = 0 must be between 1 and 16"),
        ({"cores": -1}, "--cores", "between 1 and 16"),
        ({"cores": 17}, "--cores", "between 1 and 16"),
        ({"l1": "-64 KiB"}, "--l1", "cannot be negative"),
        ({"l1": 0}, "--l1", "l1.size_bytes = 0 must be at least 1"),
        ({"l1": "8 GiB"}, "--l1", "address space"),
        ({"l2": "64k"}, "--l2", "ambiguous"),
        ({"fpus": "4-statik"}, "--fpus", "unknown FPU arrangement '4-statik'\n  try: use '4-static'"),
        ({"fpus": "0-static"}, "--fpus", "fpu.count = 0 must be between 1 and 16"),
        ({"fpus": "99-dynamic"}, "--fpus", "between 1 and 16"),
        ({"bank_conflicts": "maybe"}, "--bank-conflicts", "must be on or off"),
    ],
)
def test_refused_options(options, where, message):
    with pytest.raises(ConfigError) as caught:
        with_options(load_soc(), **options)
    assert caught.value.where == where
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("cores", "0", "cores = 0 must be between 1 and 16"),
        ("cores", "-8", "between 1 and 16"),
        ("l1.banks", "12", "must be a power of two\n  try: use 8 or 16"),
        ("l1.size_bytes", "0", "at least 1"),
        ("fpu.mapping", "sttic", "is unknown\n  try: use 'static'"),
        ("core.div_cycles", "0", "at least 1"),
        ("core.jump_stall_cycles", "-1", "at least 0"),
        ("dma.outstanding_bursts", "0", "at least 1"),
        ("clock.soc_hz", "0", "at least 1"),
        ("l3.bytes_per_peripheral_cycle", "0", "must be 0.001 or more"),
        ("l2.link_bytes_per_cycle", "-8", "at least 0"),
        ("l2.link_bytes_per_cycle", "2.5", "must be a whole number"),
        ("l1.banks", "65536", "must be at most 32768"),
        (
            "icache.shared_ways",
            "3",
            "x 3 (icache.shared_ways) x a power of two\n  try: use icache.shared_bytes of 3072 or 6144",
        ),
        (
            "icache.private_ways",
            "1000",
            "try: use icache.private_bytes of 16000, or a smaller icache.private_ways",
        ),
        ("icache.private_bytes", "3", "icache.private_bytes = 3 must be 16 (icache.line_bytes) x"),
        ("icache.line_bytes", "1024", "icache.private_bytes = 512 must be 1024 (icache.line_bytes) x"),
        ("dma.l1_bytes_per_cycle", "7", "must be a multiple of l1.word_bytes = 4"),
        ("event_unit.mutexes", "8", "try: use one of event_unit.barrier_wake_cycles"),
    ],
)
def test_refused_values(path, value, message):
    with pytest.raises(ConfigError) as caught:
        load_soc(overrides={path: value})
    assert caught.value.where == f"--set {path}={value}"
    assert message in str(caught.value)


def test_l1_too_small_for_the_stacks():
    with pytest.raises(DoesNotFitError) as caught:
        with_options(load_soc(), l1="8 KiB")
    assert (caught.value.required_bytes, caught.value.available_bytes) == (2048 + 7 * 1024 + 2048 + 4, 8192)
    assert caught.value.exit_code == 3
    assert with_options(load_soc(), l1="8 KiB", cores=1).l1_usable_bytes == 4096
    with pytest.raises(DoesNotFitError):
        load_soc(overrides={"l1.size_bytes": "9 KiB"})


def edited(folder: Path, pattern: str, replacement: str) -> Path:
    """A copy of pulp-open.yaml with one edit."""
    text = (SOC_FOLDER / "pulp-open.yaml").read_text(encoding="utf-8")
    changed, count = re.subn(pattern, replacement, text, count=1)
    assert count == 1
    path = folder / "edited.yaml"
    path.write_text(changed, encoding="utf-8")
    return path


def test_a_missing_parameter_is_named(tmp_path):
    path = edited(tmp_path, r"    banks:\n(      .*\n)+", "")
    with pytest.raises(ConfigError) as caught:
        load_soc(path)
    assert (caught.value.message, caught.value.where) == ("parameter 'l1.banks' is missing", str(path))


def test_an_unknown_parameter_is_named_with_its_line(tmp_path):
    path = edited(tmp_path, "    banks:", "    bank:")
    line = path.read_text(encoding="utf-8").splitlines().index("    bank:") + 2
    with pytest.raises(ConfigError) as caught:
        load_soc(path)
    assert caught.value.where == f"{path}:{line}"
    assert "unknown parameter 'l1.bank'" in caught.value.message
    assert caught.value.cure == "use 'l1.banks'"


def test_values_that_do_not_go_together_are_refused_where_the_last_was_set(tmp_path):
    path = tmp_path / "mine.yaml"
    text = "name: mine\nbase: pulp-open\nparameters:\n  icache:\n    private_ways: {value: 3}\n"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"512 must be 16 \(icache") as caught:
        load_soc(path)
    assert caught.value.where == f"{path}:5"
    path.write_text(f"{text}    private_bytes: {{value: 384}}\n", encoding="utf-8")
    assert load_soc(path).icache.private_ways == 3  # 8 sets
    with pytest.raises(ConfigError) as caught:
        with_values(load_soc(), {"icache.shared_ways": 5}, {"icache.shared_ways": "ways: [5]"})
    assert caught.value.where == "ways: [5]"


def test_a_wrong_unit_is_named(tmp_path):
    path = edited(
        tmp_path, r"(    bank_conflicts:\n      value: ).*\n      unit: flag", r"\g<1>3\n      unit: count"
    )
    with pytest.raises(ConfigError, match=r"parameter 'l1\.bank_conflicts' is '3', but must be on or off"):
        load_soc(path)


def test_files_load_from_another_folder(tmp_path):
    """Installed files are found whatever the current folder is."""
    root = Path(configs.__file__).parents[1]
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "from arch.spec.soc_config import load_soc\n"
        "from configs.datasets import load_digits_arrays\n"
        "from configs.model_file import load_model\n"
        "print(load_soc().name, load_model('digits-cnn').name, len(load_digits_arrays()[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "pulp-open digits-cnn 1797\n"


def test_configs_needs_no_heavy_library():
    """Loading a file must stay quick and work without the optional extras."""
    assert importlib.util.find_spec("ruamel.yaml") is not None
    code = (
        "import sys, arch.spec.soc_config, configs.model_file\n"
        "print(sorted({'torch', 'sklearn', 'matplotlib'} & set(sys.modules)))"
    )
    root = Path(configs.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
