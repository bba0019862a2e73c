//! Write amplification of each compaction strategy on a standard load: a JSON line for each.
//!
//! Rows of 200 bytes are written with random keys, each about four times over. Sizes are scaled
//! down together: memtables of about 1 MiB, leveled sstables of 1 MiB. So there are as many flushes
//! as a large table has in days. Command line: the number of writes (400000).

#[path = "../tests/all/support/mod.rs"]
mod support;

use engine::Engine;
use std::rc::Rc;
use support::*;

const LOADS: [(&str, &[(&str, &str)]); 3] = [
    ("size-tiered", &[("class", "SizeTieredCompactionStrategy"), ("min_sstable_size", "0")]),
    ("leveled", &[("class", "LeveledCompactionStrategy"), ("sstable_size_in_mb", "1"), ("min_sstable_size", "0")]),
    (
        "time-window",
        &[("class", "TimeWindowCompactionStrategy"), ("compaction_window_unit", "MINUTES"), ("min_sstable_size", "0")],
    ),
];

fn main() {
    let writes = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(400_000u64);
    for (name, options) in LOADS {
        let line = rt::block_on(load(name, options, writes));
        println!("{line}");
    }
}

async fn load(name: &str, options: &[(&str, &str)], writes: u64) -> String {
    let scratch = Scratch::new(&format!("amplification-{name}"));
    let schema = schema(864_000, |all| {
        all.compaction = options.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    });
    let mut own = config(&scratch, 64 << 20);
    own.memtable_fraction = 0.03;
    let engine = open(own, &schema, &tablets(1)).await;
    let mut random = 1u64;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for i in 0..writes {
        let k = next((writes / 4).max(1)) as i32;
        let value: String = (0..180).map(|_| char::from(b'a' + next(16) as u8)).collect();
        // A second of timestamps for each thousand writes: the windows are of about 60000.
        let change = Change::Insert { k, c: 0, value };
        let mutation = change.mutation(&schema, 1_000 * i as i64);
        engine.apply_durably(&mutation, &key(k)).await.expect("written");
    }
    engine.flush(None).await.expect("flushed");
    settle(&engine).await;
    let metrics = engine.metrics();
    let line = format!(
        "{{\"case\":\"write_amplification\",\"strategy\":\"{name}\",\"writes\":{writes},\"flushes\":{},\"flushed_bytes\":{},\
         \"compactions\":{},\"compacted_bytes_out\":{},\"write_amplification\":{:.2},\"sstables\":{},\"disk_bytes\":{}}}",
        metrics.flushes,
        metrics.flushed_bytes,
        metrics.compactions,
        metrics.compacted_bytes_out,
        (metrics.flushed_bytes + metrics.compacted_bytes_out) as f64 / metrics.flushed_bytes.max(1) as f64,
        metrics.sstables,
        metrics.disk_bytes,
    );
    engine.stop().await;
    line
}

/// Waits until compaction has nothing to do.
async fn settle(engine: &Rc<Engine>) {
    let mut calm = 0;
    while calm < 50 {
        let metrics = engine.metrics();
        let busy = metrics.compactions_running + metrics.compactions_pending + metrics.flushes_running > 0;
        calm = if busy { 0 } else { calm + 1 };
        rt::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
