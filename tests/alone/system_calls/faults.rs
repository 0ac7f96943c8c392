//! How often threads check that the fault handlers are still installed, while they access memory whose pages could
//! vanish.

use std::arch::x86_64::_rdtsc;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::recover_from_faults;
use rdma_verbs::verbs::{self, AccessFlags, SendRequest};
use support::process::alone;

use super::witness::Witness;

/// Interval between the checks of a new thread, in ticks of the time stamp counter (90 µs at 3 GHz). A check calls
/// `rt_sigaction` once for each of the two signals.
const CHECK_INTERVAL_TICKS: f64 = (1 << 18) as f64;
const CALLS_PER_CHECK: f64 = 2.0;
/// Duration of the traffic, in intervals of `CHECK_INTERVAL_TICKS`.
const INTERVALS: f64 = 2_000.0;
const BYTES: usize = 64 << 10;

#[test]
fn fault_handlers_are_checked_rarely() {
    alone(|| {
        let witness = match Witness::watch() {
            Ok(witness) => witness,
            Err(error) => return println!("skipped: the kernel does not let this thread be watched ({error})"),
        };
        recover_from_faults().expect("no other handler was installed");
        let context = verbs::open("soft:127.98.2.3").expect("a device");
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
        let qp = pd.create_qp(&cq, &cq).unwrap();
        qp.connect(&qp.connection_info().unwrap()).unwrap();
        let memory = Box::leak(vec![0u8; 2 * BYTES].into_boxed_slice());
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        // SAFETY: the memory is leaked, and nothing but the device accesses it.
        let mr = unsafe { pd.reg_mr_raw(memory.as_mut_ptr(), memory.len(), access) }.unwrap();
        let remote = mr.remote();
        let check_calls = || witness.calls().get(&(libc::SYS_rt_sigaction as i32)).copied().unwrap_or(0);
        let (before, start, end) = (check_calls(), ticks(), Instant::now() + Duration::from_secs(60));
        let mut elapsed = 0.0;
        while elapsed < INTERVALS && Instant::now() < end {
            let write = SendRequest::write(mr.slice(..BYTES).unwrap(), remote.slice(BYTES..).unwrap());
            qp.post_send(&[write.signaled()]).unwrap();
            cq.wait(Duration::from_secs(20)).unwrap().result().unwrap();
            elapsed = (ticks() - start) as f64 / CHECK_INTERVAL_TICKS;
        }
        let calls = (check_calls() - before) as f64;
        let each_time = elapsed * CALLS_PER_CHECK;
        println!("{calls} calls; one thread that checks every {CHECK_INTERVAL_TICKS} ticks makes {each_time:.0}");
        assert!(calls > 0.0, "no thread checked");
        assert!(calls < each_time / 10.0, "{calls} calls, of {each_time:.0} by a thread that checks each time");
    });
}

fn ticks() -> u64 {
    // SAFETY: every processor of this architecture has the counter.
    unsafe { _rdtsc() }
}
