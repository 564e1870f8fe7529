# SPDX-License-Identifier: Apache-2.0
"""Rooflines for tools/report.py: the chip's limit for a case, and how much of it was reached.

A case takes at least its operations over the tensor cores' rate, its bytes of DRAM over DRAM's and
its bytes of L2 over L2's; the roof is the largest of the three. Bytes, clock and bandwidths are those
counted while the case ran (kind `counters`), if there is such a row. Otherwise they come from a model:
Q, K and V are read once and O is written once, as from a cold L2; the clock is the one recorded with
the time, else the maximum; the bandwidth is that of the data sheet; and L2 is left out.
"""

import dataclasses

ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "e4m3": 1, "e5m2": 1, "int8": 1, "sim8": 1}


@dataclasses.dataclass(frozen=True)
class Chip:
    sms: int
    flop_per_clock: dict  # dense, of one SM's tensor cores, by bytes of an operand
    clock_mhz: float  # the maximum
    dram_bytes_per_second: float


# Keyed by a word in the GPU's name; from data sheets.
CHIPS = {"H200": Chip(132, {2: 4096, 1: 8192}, 1980, 4.8e12)}


@dataclasses.dataclass(frozen=True)
class Roofline:
    name: str
    counted: bool  # False: modelled
    flop: float
    dram_bytes: float
    seconds: float  # measured
    tensor_seconds: float  # lower bounds, one per limit
    dram_seconds: float
    l2_seconds: float | None

    @property
    def roof_seconds(self):
        return max(self.tensor_seconds, self.dram_seconds, self.l2_seconds or 0)

    @property
    def bound(self):
        limits = {"tensor cores": self.tensor_seconds, "DRAM": self.dram_seconds, "L2": self.l2_seconds or 0}
        return max(limits, key=limits.get)

    @property
    def share(self):
        return self.roof_seconds / self.seconds

    @property
    def intensity(self):
        return self.flop / self.dram_bytes


def chip_of(gpu):
    return next((chip for word, chip in CHIPS.items() if word in gpu), None)


def key_of(row, dtype, causal):
    return (row["batch"], row["heads"], row["length"], row["head_dim"], dtype, causal != "none")


def flop_of(row, causal):
    return (4 * row["batch"] * row["heads"] * row["length"] ** 2 * row["head_dim"]
            * (1 if causal == "none" else 0.5))


def model_bytes(row, dtype):
    """Q, K, V and O, each once."""
    elements = row["batch"] * row["heads"] * row["length"] * row["head_dim"]
    bytes_in = ELEMENT_BYTES[dtype]
    return elements * (3 * bytes_in + max(bytes_in, 2))


def counted_rows(evidence):
    """The rows of attention kernels in every counters report, by case; native precision only."""
    found = {}
    for _, report in evidence["counters"]:
        if report["attention"]["precision"] != "native":
            continue
        for row in report["rows"]:
            needed = ("sm_clock_hz", "dram_read_bytes", "dram_write_bytes", "dram_peak_bytes_per_second")
            if row["kernel"] != "preparation" and all(row["metrics"].get(n) is not None for n in needed):
                found[key_of(row, report["dtype"], report["attention"]["causal"])] = row
    return found


def usual_timing(report):
    """Graph replays, one set of buffers, a warm L2; older reports do not say so."""
    return (report.get("launch", "graph"), report.get("l2", "warm"), report.get("buffers", 1)) == ("graph", "warm", 1)


def timed_rows(evidence):
    """(gpu, row, dtype, causal, microseconds, clock in MHz or None), each case once."""
    found = {}
    for _, report in evidence["compare"]:
        for row in report["rows"]:
            if row["dtype"] in ELEMENT_BYTES:
                found[key_of(row, row["dtype"], row["causal"])] = (
                    report["gpu"]["name"], row, row["dtype"], row["causal"], row["octavo_us"],
                    row.get("clock_mhz"))
    for _, report in evidence["bench"]:
        causal = report["attention"]["causal"]
        if (report["attention"]["precision"] != "native" or not report["device"].startswith("cuda")
                or not usual_timing(report)):
            continue
        for row in report["rows"]:
            found.setdefault(key_of(row, report["dtype"], causal),
                             (report.get("machine", ""), row, report["dtype"], causal, row["median_us"], None))
    for _, report in evidence["counters"]:
        causal = report["attention"]["causal"]
        if report["attention"]["precision"] != "native":
            continue
        for row in report["rows"]:
            if row["kernel"] != "preparation" and row["metrics"].get("time_ns"):
                found.setdefault(key_of(row, report["dtype"], causal),
                                 (report["machine"], row, report["dtype"], causal,
                                  row["metrics"]["time_ns"] / 1e3, None))
    return found


def roofline(name, chip, timed, counted):
    _, row, dtype, causal, us, clock_mhz = timed
    flop = flop_of(row, causal)
    rate = chip.sms * chip.flop_per_clock[max(1, min(2, ELEMENT_BYTES[dtype]))]
    if counted is None:
        dram_bytes = model_bytes(row, dtype)
        return Roofline(name, False, flop, dram_bytes, us * 1e-6,
                        flop / (rate * (clock_mhz or chip.clock_mhz) * 1e6),
                        dram_bytes / chip.dram_bytes_per_second, None)
    m = counted["metrics"]
    dram_bytes = m["dram_read_bytes"] + m["dram_write_bytes"]
    l2 = m.get("l2_bytes"), m.get("l2_peak_bytes_per_second")
    return Roofline(name, True, flop, max(dram_bytes, 1), us * 1e-6, flop / (rate * m["sm_clock_hz"]),
                    dram_bytes / m["dram_peak_bytes_per_second"], l2[0] / l2[1] if all(l2) else None)


def rooflines(evidence, named):
    """(chip, list of Roofline) for the cases of known GPUs; None if there are none."""
    counted, found, chip = counted_rows(evidence), [], None
    for key, timed in timed_rows(evidence).items():
        known = chip_of(timed[0])
        # CUDA cores compute f32: these roofs do not apply.
        if known is None or timed[2] == "f32":
            continue
        chip = known
        name = named({**timed[1], "causal": timed[3]}) + ("" if timed[2] == "f16" else f" {timed[2]}")
        found.append(roofline(name, known, timed, counted.get(key)))
    return (chip, found) if found else None
