//! The configuration reference, made from the table of keys. `docs/configuration.md` is this text; a test keeps it so.

use super::keys::{KEYS, Key};
use super::legacy;
use super::setting::range_text;
use std::fmt::Write;

/// The text of `docs/configuration.md`.
pub fn markdown() -> String {
    let mut out = String::from(
        "# Configuration\n\n\
         Made from the table of keys in `crates/server/src/config/keys.rs`; to write it anew: `MESSINA_BLESS=1 cargo test -p messina-server reference`.\n\n\
         A node reads `messina.yaml` (`messina serve --config messina.yaml`), whose keys are\n\
         scylla.yaml's. Every key is also an option on the command line, with dashes for underscores\n\
         (`--native-transport-port 9042`). The command line wins. Without either the defaults below hold.\n\n\
         A wrong value is an error. An unknown key is a warning that names the nearest known one. An unknown\n\
         key that looks like one of the section Security is an error, and so is an unknown option in\n\
         `client_encryption_options` or `server_encryption_options`.\n\n\
         Durations take `ns`, `us`, `ms`, `s`, `m`, `h`, `d`; sizes take `K`, `M`, `G`, `T` (powers of 1024, also as `KiB` or `KB`). A bare\n\
         number counts in the unit of the key's name; both Cassandra's spellings (`read_request_timeout: 5s`,\n\
         `read_request_timeout_in_ms: 5000`) are accepted.\n",
    );
    let mut section = "";
    for key in KEYS {
        if key.section != section {
            section = key.section;
            let _ = write!(out, "\n## {section}\n\n| key | default | what it does |\n|---|---|---|\n");
        }
        row(&mut out, key);
    }
    out.push_str("\n## Keys without effect\n\nKeys of scylla.yaml and cassandra.yaml that are accepted and do nothing, with a warning at the start.\n");
    for (reason, names) in legacy::WITHOUT_EFFECT {
        let mut names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        names.sort();
        let _ = write!(out, "\n- {reason}: {}\n", names.join(", "));
    }
    out
}

fn row(out: &mut String, key: &Key) {
    let _ = write!(out, "| `{}`", key.name);
    for alias in key.aliases {
        let _ = write!(out, "<br>`{alias}`");
    }
    match (key.default)().as_str() {
        "" => out.push_str(" | "),
        default => {
            let _ = write!(out, " | `{default}`");
        }
    }
    let range = key.range.map_or_else(String::new, |range| format!(" Possible: {}.", range_text(range)));
    let _ = writeln!(out, " | {}{range} |", key.help());
}

#[cfg(test)]
mod tests {
    /// `MESSINA_BLESS=1 cargo test -p messina-server reference` writes the page.
    #[test]
    fn the_page_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let wanted = super::markdown();
        if std::env::var_os("MESSINA_BLESS").is_some() {
            std::fs::write(path, &wanted).expect("written");
        }
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            found == wanted,
            "docs/configuration.md is old: MESSINA_BLESS=1 cargo test -p messina-server reference"
        );
    }
}
