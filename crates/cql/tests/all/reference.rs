//! Executes the examples of `docs/cql.md`, in order, on one node.
//!
//! Blocks marked `cql` must work. Each statement in a block `cql later` must be refused as not
//! supported yet. The content of a block `cql prepare` must be prepared. A statement ends with a
//! line that ends with a semicolon, a batch with `APPLY BATCH;`.

use crate::support::with_node;

/// The kind of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Works,
    Later,
    Prepared,
}

/// The statements of the page, with the numbers of their first lines.
fn examples(page: &str) -> Vec<(Kind, usize, String)> {
    let mut out = Vec::new();
    let mut block: Option<Kind> = None;
    let mut statement = String::new();
    for (number, line) in page.lines().enumerate() {
        match (block, line.strip_prefix("```")) {
            (None, Some("cql")) => block = Some(Kind::Works),
            (None, Some("cql later")) => block = Some(Kind::Later),
            (None, Some("cql prepare")) => block = Some(Kind::Prepared),
            (None, Some(other)) => panic!("line {}: a block of another kind: {other}", number + 1),
            (None, None) => {}
            (Some(_), Some(_)) => {
                assert_eq!(statement, "", "line {}: a statement without its end", number + 1);
                block = None;
            }
            (Some(kind), None) => {
                if statement.is_empty() && line.trim().is_empty() {
                    continue;
                }
                statement.push_str(line);
                statement.push('\n');
                let code = line.split("--").next().unwrap_or_default().trim_end();
                let ends = match statement.starts_with("BEGIN") {
                    true => code.trim() == "APPLY BATCH;",
                    false => code.ends_with(';'),
                };
                if ends {
                    out.push((kind, number + 1, std::mem::take(&mut statement)));
                }
            }
        }
    }
    assert_eq!(block, None, "the last block has no end");
    out
}

#[test]
fn the_examples_of_the_page_work_as_described() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cql.md");
    let page = std::fs::read_to_string(path).expect("the page is there");
    let examples = examples(&page);
    let count = |wanted: Kind| examples.iter().filter(|(kind, ..)| *kind == wanted).count();
    assert!(count(Kind::Works) > 40 && count(Kind::Later) > 10 && count(Kind::Prepared) > 0);
    with_node("reference", |session| async move {
        for (kind, line, statement) in &examples {
            match kind {
                Kind::Works => {
                    let answer = session.query(statement).await;
                    assert!(answer.is_ok(), "docs/cql.md, the statement that ends in line {line}: {:?}", answer.err());
                }
                Kind::Later => match session.query(statement).await {
                    Ok(_) => panic!("docs/cql.md, line {line}: it is supported by now: {statement}"),
                    Err(error) => {
                        let text = error.to_string();
                        assert!(text.ends_with("not supported yet"), "docs/cql.md, line {line}: {text}");
                    }
                },
                Kind::Prepared => {
                    let prepared = session.processor.prepare(&session.client, statement, None).await;
                    let prepared = prepared.unwrap_or_else(|error| panic!("docs/cql.md, line {line}: {error}"));
                    assert!(!prepared.markers.columns.is_empty(), "docs/cql.md, line {line}");
                }
            }
        }
    });
}
