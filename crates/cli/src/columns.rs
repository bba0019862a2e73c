//! Lines of text in columns.

use std::fmt::Write;

/// Appends lines of cells to `out`, each column as wide as its widest cell. `gap` separates the
/// columns. Columns for which `is_number` is true are aligned on the right.
pub fn append<const N: usize>(out: &mut String, lines: &[[String; N]], gap: &str, is_number: impl Fn(usize) -> bool) {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for line in lines {
        let cells = line.iter().zip(widths).enumerate().map(|(column, (cell, width))| match is_number(column) {
            true => format!("{cell:>width$}"),
            false => format!("{cell:width$}"),
        });
        // Writing into a string cannot fail.
        let _ = writeln!(out, "{}", cells.collect::<Vec<_>>().join(gap).trim_end());
    }
}
