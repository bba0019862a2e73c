//! Hundreds of thousands of invalid paging states; each is refused. `PAGING_STATES=n` sets their
//! number (`make forge`: 10 million).

use fuzz::paging_states::Fixture;
use std::path::Path;

const STATES: u64 = 200_000;

#[test]
fn wrong_states_are_refused() {
    let count = std::env::var("PAGING_STATES").ok().and_then(|n| n.parse().ok()).unwrap_or(STATES);
    let began = std::time::Instant::now();
    Fixture::default().refuse(count, 1);
    println!("{count} wrong paging states were refused in {:.1} s", began.elapsed().as_secs_f64());
}

/// The corpus must have a valid state: otherwise the fuzzer would only damage invalid ones.
/// `MESSINA_BLESS=1` rewrites it.
#[test]
fn the_corpus_has_a_state_that_is_taken() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/paging_state/good");
    let fixture = Fixture::default();
    if std::env::var_os("MESSINA_BLESS").is_some() {
        std::fs::write(&path, fixture.good()).expect("written");
        let body = path.with_file_name("body");
        std::fs::write(body, &fixture.good()[21..]).expect("written");
    }
    let found = std::fs::read(&path).expect("the corpus is there");
    assert!(fixture.open(&found.into()).is_ok(), "MESSINA_BLESS=1 cargo test -p messina-fuzz --test paging_states");
}
