use super::*;

const UCX_LATENCY: &str = "\
+--------------+--------------+------------------------------+---------------------+-----------------------+
|              |              |        latency (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
|     Test     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
                       50000      5.154     5.485     5.500        1.39       1.39      182322      182322
";
const UCX_BANDWIDTH: &str = "\
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
|     Test     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
                        1000      6.020   207.370   207.370     9999.99    4822.30        4822        4822
";
const LIBFABRIC: &str = "\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
1m      200     =200     400m        1.31s    321.18    3264.73       0.00
";

fn is_near(found: f64, wanted: f64) -> bool {
    (found / wanted - 1.0).abs() < 1e-3
}

fn read(program: Program, size: usize, text: &str) -> Option<ExternalResults> {
    External { program, size, iterations: 1, warm_up: 1 }.read(text)
}

#[test]
fn output_of_ucx_is_read() {
    let latency = read(Program::Ucx(UcxTest::TagLatency, UcxTransport::Tcp), 8, UCX_LATENCY).expect("a latency");
    assert_eq!((latency.bytes, latency.messages), (8, 50_000));
    assert_eq!((latency.median, latency.mean), (Some(5.154), Some(5.5)));
    assert!(is_near(latency.seconds, 0.55), "{latency:?}");
    // UCX's megabytes have 2^20 bytes. The overall figure counts, not the last second's.
    let bandwidth =
        read(Program::Ucx(UcxTest::PutBandwidth, UcxTransport::Tcp), 1 << 20, UCX_BANDWIDTH).expect("a bandwidth");
    assert_eq!((bandwidth.messages, bandwidth.median), (1000, None));
    assert!(is_near(bandwidth.seconds, 0.20737), "{bandwidth:?}");
}

#[test]
fn output_of_libfabric_is_read() {
    let ping_pong =
        read(Program::LibfabricPingPong(LibfabricProvider::SharedMemory), 1 << 20, LIBFABRIC).expect("a latency");
    assert_eq!((ping_pong.messages, ping_pong.mean), (400, Some(3264.73)));
    assert!(is_near(ping_pong.seconds, 1.3059), "{ping_pong:?}");
    let many = LIBFABRIC.replace("200 ", "20k ");
    let ping_pong =
        read(Program::LibfabricPingPong(LibfabricProvider::SharedMemory), 1 << 20, &many).expect("a latency");
    assert_eq!(ping_pong.messages, 40_000);
}

#[test]
fn broken_output_gives_no_figures() {
    let broken = ["", "nothing\n", "1 2 3 4 5 6 7 nonsense\n", "0 1 1 1 1 1 1 1\n", "5 1 1 0 1 0 1 1\n"];
    for text in broken {
        for program in [
            Program::Ucx(UcxTest::TagLatency, UcxTransport::Tcp),
            Program::Ucx(UcxTest::TagBandwidth, UcxTransport::Tcp),
            Program::LibfabricPingPong(LibfabricProvider::SharedMemory),
        ] {
            let read = read(program, 8, text);
            assert!(read.as_ref().is_none_or(|results| results.seconds > 0.0), "{text:?} is read as {read:?}");
        }
    }
}

#[test]
fn only_a_listening_socket_counts() {
    let sockets = "  sl  local_address rem_address   st tx_queue rx_queue tr\n   \
                   0: 0100007F:36A7 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1\n   \
                   1: 0100007F:D3A0 0100007F:36A8 01 00000000:00000000 00:00000000 00000000     0        0 1 1\n";
    assert!(listens(sockets, 0x36A7), "the listening one");
    assert!(!listens(sockets, 0xD3A0), "a connected one");
    assert!(!listens(sockets, 0x36A8), "the other end's port");
}
