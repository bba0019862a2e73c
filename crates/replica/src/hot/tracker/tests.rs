//! Which partitions are listed, and how exact their rates are.

use super::*;

fn id(token: i64) -> PartitionId {
    PartitionId { table: TableId::from_bytes([7; 16]), token: Token(token) }
}

const READ: Operation = Operation { kind: LimitKind::Read, last_token: None, bytes: 100, cpu_nanos: 5_000 };
const SCALE: f64 = 32.0;

/// Random numbers from 0 to 1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Partitions with Zipf's distribution: the most frequent one is 0.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(partitions: usize) -> Zipf {
        let mut sum = 0.0;
        let sums = (1..=partitions).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        Zipf(sums.collect())
    }

    fn total(&self) -> f64 {
        self.0[self.0.len() - 1]
    }

    fn next(&self, random: &mut Random) -> i64 {
        let at = random.next() * self.total();
        self.0.partition_point(|sum| *sum < at) as i64
    }
}

#[test]
fn of_a_zipf_load_over_a_million_keys_the_true_top_ten_are_listed_with_their_rates() {
    let zipf = Zipf::new(1_000_000);
    let rate = 40_000.0;
    let mut all_within = 0;
    for seed in 1..=10 {
        let (mut tracker, mut random) = (Tracker::default(), Random(seed * 0x9e37_79b9));
        for _ in 0..200 {
            for _ in 0..(rate / SCALE / 10.0) as usize {
                let token = zipf.next(&mut random);
                tracker.performed(id(token), &token.to_be_bytes(), READ, SCALE);
            }
            tracker.advance(Duration::from_millis(100));
        }
        let listed = tracker.hottest(10);
        let right = listed.iter().filter(|hot| {
            let token = hot.id.token.0;
            let truth = rate / (token + 1) as f64 / zipf.total();
            assert_eq!(hot.key.as_deref(), Some(&token.to_be_bytes()[..]));
            token < 10 && (hot.reads / truth - 1.0).abs() < 0.2
        });
        assert!(right.count() >= 9, "seed {seed}: {listed:?}");
        let within = listed.iter().filter(|hot| {
            let truth = rate / (hot.id.token.0 + 1) as f64 / zipf.total();
            (hot.reads - truth).abs() <= hot.error
        });
        all_within += within.count();
    }
    assert!(all_within > 90, "the error bounds of 100 rates hold for {all_within}");
}

/// Lets partitions 0, 1, ... be read at these rates for some seconds, beside many others.
fn read(tracker: &mut Tracker, seconds: f64, rates: &[f64], others: f64, random: &mut Random) {
    for _ in 0..(seconds * 10.0) as usize {
        for (token, rate) in rates.iter().enumerate() {
            (0..(rate / SCALE / 10.0) as usize).for_each(|_| tracker.performed(id(token as i64), b"hot", READ, SCALE));
        }
        for _ in 0..(others / SCALE / 10.0) as usize {
            let token = 1_000 + (random.next() * 1e6) as i64;
            tracker.performed(id(token), b"other", READ, SCALE);
        }
        tracker.advance(Duration::from_millis(100));
    }
}

#[test]
fn a_new_hot_partition_is_shown_within_a_second_and_an_old_one_fades() {
    let (mut tracker, mut random) = (Tracker::default(), Random(5));
    read(&mut tracker, 60.0, &[0.0, 16_000.0], 32_000.0, &mut random);
    read(&mut tracker, 1.0, &[16_000.0, 0.0], 32_000.0, &mut random);
    let new = tracker.hottest(5).into_iter().find(|hot| hot.id == id(0)).expect("listed");
    assert!(new.reads > 8_000.0, "{new:?}");
    read(&mut tracker, 4.0, &[16_000.0, 0.0], 32_000.0, &mut random);
    let list = tracker.hottest(5);
    assert!((list.iter().find(|hot| hot.id == id(0)).expect("listed").reads / 16_000.0 - 1.0).abs() < 0.05, "{list:?}");
    read(&mut tracker, 60.0, &[16_000.0, 0.0], 32_000.0, &mut random);
    let old = tracker.hottest(600).into_iter().find(|hot| hot.id == id(1));
    assert!(old.is_none_or(|old| old.reads < 16.0));
}

#[test]
fn rates_are_right_from_the_start_and_with_any_steps_of_time() {
    for steps in [1, 3, 10, 100] {
        let mut tracker = Tracker::default();
        for _ in 0..steps {
            (0..1_000 / steps).for_each(|_| tracker.performed(id(1), b"key", READ, 1.0));
            tracker.advance(Duration::from_secs(1) / steps);
        }
        let hot = &tracker.hottest(1)[0];
        let real = f64::from(1_000 / steps * steps);
        assert!((hot.reads / real - 1.0).abs() < 0.01 && (hot.bytes / real / 100.0 - 1.0).abs() < 0.01, "{hot:?}");
        assert_eq!((hot.cpu_share, hot.writes, hot.refused), (1.0, 0.0, 0.0));
    }
}

#[test]
fn few_operations_with_much_cpu_time_or_many_bytes_are_hot() {
    let (mut tracker, mut random) = (Tracker::default(), Random(9));
    for _ in 0..50 {
        read(&mut tracker, 0.1, &[], 32_000.0, &mut random);
        tracker.performed(id(1), b"cpu", Operation { cpu_nanos: 2_000_000, ..READ }, SCALE);
        tracker.performed(id(2), b"bytes", Operation { bytes: 1_000_000, kind: LimitKind::Write, ..READ }, SCALE);
        tracker.advance(Duration::from_millis(1));
    }
    let mut list: Vec<i64> = tracker.hottest(2).iter().map(|hot| hot.id.token.0).collect();
    list.sort_unstable();
    assert_eq!(list, [1, 2]);
    let cpu = tracker.hottest(2).into_iter().find(|hot| hot.id == id(1)).expect("listed");
    assert!(cpu.cpu_share > 0.5, "{cpu:?}");
}

#[test]
fn refused_operations_count_separately_and_keep_a_partition_hot() {
    let mut tracker = Tracker::default();
    for _ in 0..100 {
        (0..10).for_each(|_| tracker.performed(id(1), b"key", READ, SCALE));
        (0..40).for_each(|_| tracker.refused(id(1), LimitKind::Read, false, SCALE));
        // By a limit in bytes.
        (0..50).for_each(|_| tracker.refused(id(1), LimitKind::ReadBytes, false, SCALE));
        (0..5).for_each(|_| tracker.would_refuse(id(1), SCALE));
        tracker.advance(Duration::from_millis(100));
    }
    let hot = &tracker.hottest(1)[0];
    let near = |found: f64, wanted: f64| (found / wanted - 1.0).abs() < 0.01;
    let [reads, accepted, refused, would_refuse] = [1_000.0, 100.0, 900.0, 50.0].map(|samples| samples * SCALE);
    assert!(near(hot.reads, reads) && near(hot.accepted, accepted) && near(hot.refused, refused), "{hot:?}");
    assert!(near(hot.would_refuse, would_refuse), "{hot:?}");
    let (total, demands) = tracker.demands(0.01);
    // Operations of 5 us: a tenth is performed.
    let (wanted, got) = (reads * 5e-6, accepted * 5e-6);
    assert!(near(total, got) && near(demands[0].got, got) && near(demands[0].wanted, wanted), "{demands:?}");
}

/// Otherwise the protection would cut a partition that takes little time, because its limit refuses
/// most of its operations.
#[test]
fn operations_that_a_limit_refuses_demand_no_time() {
    let mut tracker = Tracker::default();
    for _ in 0..100 {
        (0..10).for_each(|_| tracker.performed(id(1), b"key", READ, SCALE));
        (0..10).for_each(|_| tracker.refused(id(1), LimitKind::Read, false, SCALE));
        (0..980).for_each(|_| tracker.refused(id(1), LimitKind::Read, true, SCALE));
        tracker.advance(Duration::from_millis(100));
    }
    let (_, demands) = tracker.demands(0.01);
    assert!((demands[0].wanted / demands[0].got / 2.0 - 1.0).abs() < 0.01, "{demands:?}");
}

#[test]
fn a_single_slow_sample_is_no_hot_partition() {
    let mut tracker = Tracker::default();
    tracker.performed(id(1), b"key", Operation { cpu_nanos: 1_000_000_000, ..READ }, SCALE);
    (0..10).for_each(|_| tracker.performed(id(2), b"key", READ, SCALE));
    tracker.advance(Duration::from_secs(1));
    assert_eq!(tracker.hottest(10).iter().map(|hot| hot.id).collect::<Vec<_>>(), [id(2)]);
}

#[test]
fn memory_is_bounded_by_any_keys() {
    let mut tracker = Tracker::default();
    let long = vec![1; 65_535];
    for token in 0..100_000 {
        (0..3).for_each(|_| tracker.performed(id(token), &long, READ, SCALE));
    }
    tracker.advance(Duration::from_secs(1));
    let list = tracker.hottest(usize::MAX);
    assert!(list.len() <= PARTITIONS && list.iter().all(|hot| hot.key.is_none()));
}

#[test]
fn operations_are_summed_by_tablet_until_it_has_none() {
    let mut tracker = Tracker::default();
    let tablet = |token| TabletId { table: id(0).table, last_token: Token(token) };
    // 800 reads per second of the first tablet, spread over partitions, and 400 of the second.
    for second in 0..20 {
        for n in 0..150 {
            let last_token = Some(Token(if n % 3 == 2 { 20 } else { 10 }));
            tracker.performed(id(second * 150 + n), &[], Operation { last_token, ..READ }, 8.0);
        }
        tracker.advance(Duration::from_secs(1));
    }
    let [first, second] = tracker.tablets()[..] else { panic!("{:?}", tracker.tablets()) };
    assert_eq!((first.id, second.id), (tablet(10), tablet(20)));
    let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.1;
    assert!(near(first.reads, 800.0) && near(second.reads, 400.0), "{first:?} {second:?}");
    assert!(near(first.bytes, 80_000.0) && near(first.cpu_share, 2.0 / 3.0) && first.writes == 0.0, "{first:?}");
    tracker.advance(Duration::from_secs(200));
    assert_eq!(tracker.tablets(), []);
}
