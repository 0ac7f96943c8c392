//! Marks that are known to be missed, and why. "Presumably" marks causes that were not traced in a run.

use super::row::Row;

/// Rows that miss a mark for the same reason.
struct Miss {
    reason: &'static str,
    /// The numbers of the cases, and the rows' parameters.
    rows: &'static [(u8, &'static str)],
}

/// Returns why a row misses its mark, if that is known.
pub(crate) fn reason(row: &Row) -> Option<&'static str> {
    let is_it = |(case, parameters): &(u8, &str)| *case == row.case && *parameters == row.parameters;
    MISSES.iter().find(|miss| miss.rows.iter().any(is_it)).map(|miss| miss.reason)
}

const MISSES: &[Miss] = &[
    Miss {
        reason: "By calculation: eight packets in a queue allow a window of ten; CUBIC (RFC 9438, 4.3) \
                 regains it from 0.7 after four round trips, and loses one packet of about 30.",
        rows: &[
            (1, "10 Mbit/s, 20 µs, queue 0.25 BDP"),
            (1, "10 Mbit/s, 20 µs, queue 1 BDP"),
            (1, "10 Mbit/s, 20 µs, queue 4 BDP"),
            (1, "10 Mbit/s, 1 ms, queue 0.25 BDP"),
            (1, "10 Mbit/s, 1 ms, queue 1 BDP"),
            (1, "10 Mbit/s, 1 ms, queue 4 BDP"),
        ],
    },
    Miss {
        reason: "Packets are not paced where the round trip is below 200 µs: a burst overflows a short queue.",
        rows: &[
            (1, "1 Gbit/s, 20 µs, queue 0.25 BDP"),
            (1, "1 Gbit/s, 20 µs, queue 1 BDP"),
            (1, "1 Gbit/s, 20 µs, queue 4 BDP"),
            (1, "10 Gbit/s, 20 µs, queue 0.25 BDP"),
            (1, "10 Gbit/s, 20 µs, queue 1 BDP"),
            (1, "100 Gbit/s, 20 µs, queue 0.25 BDP"),
            (1, "100 Gbit/s, 20 µs, queue 1 BDP"),
        ],
    },
    Miss {
        reason: "Presumably: losses of a queue of 250 µs look random, and the window keeps it empty.",
        rows: &[(1, "1 Gbit/s, 1 ms, queue 0.25 BDP"), (5, "1 and 1, 1 Gbit/s, 1 ms, queue 0.25 BDP")],
    },
    Miss {
        reason: "The peer's socket bounds the window: 1 MiB, or 1 MiB for each millisecond, 16 MiB at most.",
        rows: &[
            (1, "10 Gbit/s, 1 ms, queue 0.25 BDP"),
            (1, "10 Gbit/s, 1 ms, queue 1 BDP"),
            (1, "10 Gbit/s, 1 ms, queue 4 BDP"),
            (1, "10 Gbit/s, 20 ms, queue 0.25 BDP"),
            (1, "10 Gbit/s, 20 ms, queue 1 BDP"),
            (1, "10 Gbit/s, 20 ms, queue 4 BDP"),
            (1, "100 Gbit/s, 1 ms, queue 0.25 BDP"),
            (1, "100 Gbit/s, 1 ms, queue 1 BDP"),
            (1, "100 Gbit/s, 1 ms, queue 4 BDP"),
        ],
    },
    Miss {
        reason: "Traced: the transport timer expires once, before the first response. That is persistent congestion, \
                 and ends slow start at 11 packets.",
        rows: &[(1, "1 Gbit/s, 100 ms, queue 1 BDP, timeout 14")],
    },
    Miss {
        reason: "Traced: many hosts never see the queue empty, take it for the path, and losses for random; a third of \
                 the packets is dropped, 0.6 with 256 hosts.",
        rows: &[(2, "64 hosts, 1 Gbit/s, 1 ms, queue 200 kB"), (2, "256 hosts, 1 Gbit/s, 1 ms, queue 200 kB")],
    },
    Miss {
        reason: "Presumably: a queue pair that finds no room did not request an acknowledgement with its last \
                 packet, and does so by a probe, a round trip later. Almost nothing is lost.",
        rows: &[(3, "64 queue pairs, 1 Gbit/s, 1 ms"), (3, "1000 queue pairs, 1 Gbit/s, 1 ms")],
    },
    Miss {
        reason: "Unknown: TCP gets more of a long queue, where the windows need many seconds to change.",
        rows: &[
            (5, "1 and 1, 1 Gbit/s, 20 ms, queue 1 BDP"),
            (5, "1 and 1, 1 Gbit/s, 20 ms, queue 4 BDP"),
            (5, "4 and 4, 1 Gbit/s, 20 ms, queue 1 BDP"),
            (5, "4 and 4, 1 Gbit/s, 20 ms, queue 4 BDP"),
        ],
    },
    Miss {
        reason: "Beside the link's losses, the queue overflows each time the window has grown: 70 times in 4 s.",
        rows: &[(6, "1 Gbit/s, 50 µs, 0.01 % lost")],
    },
    Miss {
        reason: "No trial where the round trip is longer than 2 ms: one of many hosts on a short queue would pass it.",
        rows: &[(6, "1 Gbit/s, 20 ms, 2 % lost")],
    },
    Miss {
        reason: "Presumably: the link is full, so TCP's round trips are longer than beside another TCP.",
        rows: &[(7, "1 Gbit/s, 50 µs, 1 % lost, queue 1 BDP")],
    },
    Miss {
        reason: "Presumably: a burst of 7 kB fills most of the queue up to the mark, and the window stays small.",
        rows: &[
            (9, "1 stream, 1 Gbit/s, 1 ms, marks from 0.1 BDP"),
            (9, "1 stream, 1 Gbit/s, 1 ms, marks from 0.2 BDP"),
            (9, "4 streams, 1 Gbit/s, 1 ms, marks from 0.1 BDP"),
        ],
    },
    Miss {
        reason: "First windows of 16 packets overflow the queue together, and a probe of 2 to 10 ms finds a lost end.",
        rows: &[
            (10, "64 KiB each, WRITE, 10 Gbit/s, queue 1 MiB"),
            (10, "64 KiB each, WRITE, 10 Gbit/s, queue 200 kB"),
            (10, "64 KiB each, WRITE, 100 Gbit/s, queue 1 MiB"),
            (10, "64 KiB each, WRITE, 100 Gbit/s, queue 200 kB"),
        ],
    },
    Miss {
        reason: "Nothing bounds the sum of the first windows of all paths, and probes find lost ends.",
        rows: &[
            (10, "64 KiB each, READ, 1 Gbit/s, queue 1 MiB"),
            (10, "64 KiB each, READ, 1 Gbit/s, queue 200 kB"),
            (10, "64 KiB each, READ, 10 Gbit/s, queue 1 MiB"),
            (10, "64 KiB each, READ, 10 Gbit/s, queue 200 kB"),
            (10, "64 KiB each, READ, 100 Gbit/s, queue 1 MiB"),
            (10, "64 KiB each, READ, 100 Gbit/s, queue 200 kB"),
        ],
    },
    Miss {
        reason: "Presumably: READs make a short queue overflow sooner, since each request stands for many packets.",
        rows: &[
            (12, "1 Gbit/s, alone, 20 µs, queue 0.25 BDP"),
            (12, "1 Gbit/s, alone, 20 µs, queue 1 BDP"),
            (12, "1 Gbit/s, alone, 20 µs, queue 4 BDP"),
            (12, "1 Gbit/s, alone, 1 ms, queue 0.25 BDP"),
        ],
    },
    Miss {
        reason: "A lost READ request: nothing behind it is executed until it is resent, and the path runs empty.",
        rows: &[
            (12, "1 Gbit/s, 50 µs, 10 % lost"),
            (12, "1 Gbit/s, 1 ms, 2 % lost"),
            (12, "1 Gbit/s, 1 ms, 5 % lost"),
            (12, "1 Gbit/s, 1 ms, 10 % lost"),
            (12, "1 Gbit/s, 20 ms, 0.1 % lost"),
            (12, "1 Gbit/s, 20 ms, 1 % lost"),
        ],
    },
    Miss {
        reason: "READs and WRITEs are held back by congestion control; partly lost requests, as above.",
        rows: &[
            (12, "1 Gbit/s, 20 ms, 2 % lost"),
            (12, "1 Gbit/s, 20 ms, 5 % lost"),
            (12, "1 Gbit/s, 20 ms, 10 % lost"),
        ],
    },
    Miss {
        reason: "Responses to a READ request leave at once, and a full queue drops more of them than of paced WRITEs.",
        rows: &[
            (12, "1 Gbit/s, beside TCP, 1 ms, queue 0.25 BDP"),
            (12, "1 Gbit/s, beside TCP, 1 ms, queue 1 BDP"),
            (12, "1 Gbit/s, beside TCP, 1 ms, queue 4 BDP"),
            (12, "1 Gbit/s, beside TCP, 20 ms, queue 0.25 BDP"),
            (12, "1 Gbit/s, beside TCP, 20 ms, queue 1 BDP"),
            (12, "1 Gbit/s, beside TCP, 20 ms, queue 4 BDP"),
        ],
    },
    Miss {
        reason: "1.2 windows in a round trip exceed the policer's burst at 0.93 of the BDP.",
        rows: &[(13, "1 Gbit/s, 20 ms, burst 64 KiB")],
    },
    Miss {
        reason: "Half of the late packets are later than the longest wait, a quarter of the round trip.",
        rows: &[(14, "1 Gbit/s, 20 ms, 1 % by up to half a round trip")],
    },
    Miss {
        reason: "Presumably: a late packet looks like a loss to a full queue in slow start, and ends it early.",
        rows: &[(14, "1 Gbit/s, 20 ms, 1 % by up to 10 packets")],
    },
    Miss {
        reason: "Conservative slow start grows by a quarter in the round that passes until the first loss is noticed.",
        rows: &[(16, "1 Gbit/s, 1 ms, queue 4 BDP"), (16, "1 Gbit/s, 20 ms, queue 4 BDP")],
    },
    Miss {
        reason: "By calculation: acknowledgements are requested every 16 packets, which lengthens the round trip.",
        rows: &[(19, "50 Mbit/s, 20 ms"), (19, "1 Gbit/s, 1 ms")],
    },
];
