//! Numbers that an attacker must not be able to guess.

use std::collections::{HashMap, HashSet};

use rdma_verbs::verbs::{self, AccessFlags, QueuePair};

const SAMPLES: usize = 1_000;
/// Number of devices of which one must have many blocks.
const DEVICES: usize = 50;

/// Returns the numbers of queue pairs of a device that exist at the same time.
fn numbers_of(device: &str, count: usize) -> Vec<u32> {
    let context = verbs::open(device).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let queue_pairs: Vec<QueuePair> = (0..count).map(|_| pd.create_qp(&cq, &cq).unwrap()).collect();
    queue_pairs.iter().map(|qp| qp.qpn().value()).collect()
}

/// A device that tries blocks in use takes fewer. Other processes of this test program have some, so that not every
/// device gets many.
#[test]
fn queue_pairs_of_a_device_are_spread_over_many_blocks() {
    let blocks = |_: usize| -> usize {
        let numbers = numbers_of("soft:127.99.4.1", SAMPLES);
        numbers.iter().map(|number| number >> 12).collect::<HashSet<u32>>().len()
    };
    let mut counts = (0..DEVICES).map(blocks);
    assert!(counts.any(|count| count >= 12), "none of {DEVICES} devices has many");
}

#[test]
fn a_number_is_not_given_again_soon() {
    let context = verbs::open("soft:127.99.4.2").unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let numbers = (0..6_000).map(|_| pd.create_qp(&cq, &cq).unwrap().qpn().value());
    let mut last_seen = HashMap::new();
    let mut again = 0;
    for (index, number) in numbers.enumerate() {
        let before: Option<usize> = last_seen.insert(number, index);
        again += usize::from(before.is_some_and(|before| index - before < 2_000));
    }
    assert_eq!(again, 0, "numbers came again within 2,000 others");
}

/// Returns the number of bits that an attacker has to guess, from the share of equal pairs, and whether it is only a
/// lower bound, because no pair is equal.
fn bits(samples: &[u32]) -> (f64, bool) {
    let mut counts = HashMap::new();
    samples.iter().for_each(|sample| *counts.entry(sample).or_insert(0u64) += 1);
    let equal: u64 = counts.values().map(|count| count * (count - 1) / 2).sum();
    let pairs = (samples.len() * (samples.len() - 1) / 2) as f64;
    ((pairs / equal.max(1) as f64).log2(), equal == 0)
}

/// Returns the lowest entropy of a single bit among the lowest `width`.
fn weakest_bit(samples: &[u32], width: u32) -> f64 {
    let share =
        |bit: u32| samples.iter().filter(|sample| *sample >> bit & 1 == 1).count() as f64 / samples.len() as f64;
    let entropy = |p: f64| if p == 0.0 || p == 1.0 { 0.0 } else { -p * p.log2() - (1.0 - p) * (1.0 - p).log2() };
    (0..width).map(|bit| entropy(share(bit))).fold(1.0, f64::min)
}

fn print(name: &str, samples: &[u32], width: u32) {
    let distinct: HashSet<&u32> = samples.iter().collect();
    let steps: HashSet<u32> = samples.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    let (bits, is_bound) = bits(samples);
    let sign = if is_bound { ">" } else { " " };
    let weakest = weakest_bit(samples, width);
    println!(
        "{name:<36} {width:>5} {:>8} {:>9} {:>7} {sign}{bits:>5.1} {weakest:>8.4}",
        samples.len(),
        distinct.len(),
        steps.len()
    );
}

/// Prints the entropy of each number that an attacker has to guess.
#[test]
#[ignore = "prints a table"]
fn numbers_are_unpredictable() {
    println!(
        "{:<36} {:>5} {:>8} {:>9} {:>7} {:>6} {:>8}",
        "", "width", "samples", "distinct", "steps", "bits", "weakest"
    );
    let low = |numbers: &[u32]| numbers.iter().map(|number| number & 0xfff).collect::<Vec<u32>>();
    let high = |numbers: &[u32]| numbers.iter().map(|number| number >> 12).collect::<Vec<u32>>();
    let one = numbers_of("soft:127.99.4.3", SAMPLES);
    print("QPN, one device, upper half", &high(&one), 12);
    print("QPN, one device, lower half", &low(&one), 12);
    let many: Vec<u32> = (0..SAMPLES).flat_map(|_| numbers_of("soft:127.99.4.3", 1)).collect();
    print("QPN, a device each, upper half", &high(&many), 12);
    print("QPN, a device each, lower half", &low(&many), 12);
    print("QPN, a device each", &many, 24);
    let context = verbs::open("soft:127.99.4.4").unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let queue_pairs: Vec<QueuePair> = (0..SAMPLES).map(|_| pd.create_qp(&cq, &cq).unwrap()).collect();
    let psn = |qp: &QueuePair| {
        qp.init().unwrap();
        qp.connection_info().unwrap().psn.value()
    };
    print("PSN", &queue_pairs.iter().map(psn).collect::<Vec<u32>>(), 24);
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let regions: Vec<_> = (0..SAMPLES).map(|_| pd.alloc_mr(64, access).unwrap()).collect();
    print("rkey", &regions.iter().map(|region| region.rkey().0).collect::<Vec<u32>>(), 32);
    let again = (0..SAMPLES).map(|_| pd.alloc_mr(64, access).unwrap().rkey().0).collect::<Vec<u32>>();
    print("rkey, one region after the other", &again, 32);
}
