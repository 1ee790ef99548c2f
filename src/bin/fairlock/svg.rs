//! A terminal's screen as a picture.

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};
use std::fmt::Write as _;
use unicode_width::UnicodeWidthStr;

const CELL_WIDTH: f32 = 8.4;
const CELL_HEIGHT: u16 = 18;
const FOREGROUND: &str = "#d7dae0";
const BACKGROUND: &str = "#1b1e24";

pub(crate) fn picture(buffer: &Buffer) -> String {
    let (columns, lines) = (buffer.area.width, buffer.area.height);
    let (width, height) = (x(columns) + 16.0, lines * CELL_HEIGHT + 16);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height}\" \
         viewBox=\"-8 -8 {width:.0} {height}\" font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" \
         font-size=\"14\">\n<rect x=\"-8\" y=\"-8\" width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{BACKGROUND}\"/>\n"
    );
    for line in 0..lines {
        let mut begin = 0;
        for run in cells(buffer, line).chunk_by(|a, b| looks(a) == looks(b)) {
            let columns = run.iter().map(|cell| columns_of(cell)).sum();
            write_run(&mut svg, run, (begin, columns), line);
            begin += columns;
        }
    }
    svg + "</svg>\n"
}

/// A line's cells as they are seen: without those that a wide character covers.
pub(crate) fn cells(buffer: &Buffer, line: u16) -> Vec<&Cell> {
    let mut cells = Vec::new();
    let mut column = 0;
    while let Some(cell) = buffer.cell((column, line)) {
        cells.push(cell);
        column += columns_of(cell);
    }
    cells
}

fn columns_of(cell: &Cell) -> u16 {
    u16::try_from(cell.symbol().width()).map_or(1, |columns| columns.max(1))
}

/// Neighbours that look alike, beginning at that column, in so many.
fn write_run(svg: &mut String, run: &[&Cell], (begin, columns): (u16, u16), line: u16) {
    let Some(first) = run.first() else { return };
    let (foreground, background, modifier) = looks(first);
    let mut colors = (
        color(foreground).unwrap_or(FOREGROUND),
        color(background).unwrap_or(BACKGROUND),
    );
    if modifier.contains(Modifier::REVERSED) {
        colors = (colors.1, colors.0);
    }
    let (left, top) = (x(begin), line * CELL_HEIGHT);
    let width = x(columns);
    if colors.1 != BACKGROUND {
        let fill = colors.1;
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{CELL_HEIGHT}\" fill=\"{fill}\"/>"
        );
    }
    let text: String = run.iter().map(|cell| cell.symbol()).collect();
    if text.trim().is_empty() {
        return;
    }
    let weight = if modifier.contains(Modifier::BOLD) {
        " font-weight=\"bold\""
    } else {
        ""
    };
    let opacity = if modifier.contains(Modifier::DIM) {
        " opacity=\"0.6\""
    } else {
        ""
    };
    let (fill, base) = (colors.0, top + 14);
    // The length keeps the columns where they are, whatever font there is.
    let _ = writeln!(
        svg,
        "<text x=\"{left:.1}\" y=\"{base}\" textLength=\"{width:.1}\" fill=\"{fill}\"{weight}{opacity} \
         xml:space=\"preserve\">{}</text>",
        escaped(&text)
    );
}

fn looks(cell: &Cell) -> (Color, Color, Modifier) {
    (cell.fg, cell.bg, cell.modifier)
}

fn x(column: u16) -> f32 {
    f32::from(column) * CELL_WIDTH
}

/// The colours that are used.
fn color(color: Color) -> Option<&'static str> {
    Some(match color {
        Color::Red => "#ef6b73",
        Color::Green => "#8ec07c",
        Color::Yellow => "#e5c07b",
        Color::Magenta => "#d484d9",
        Color::Cyan => "#5fc3d0",
        Color::DarkGray => "#7a808c",
        _ => return None,
    })
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    #[test]
    fn cells_that_look_alike_share_an_element_and_text_is_escaped() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 10, 1));
        buffer.set_string(0, 0, "<&>", Style::new());
        buffer.set_string(3, 0, "red", Style::new().fg(Color::Red));
        let svg = picture(&buffer);
        assert_eq!(svg.matches("<text").count(), 2, "{svg}");
        assert!(
            svg.contains(">&lt;&amp;&gt;</text>") && svg.contains("#ef6b73"),
            "{svg}"
        );
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn wide_characters_take_two_columns_and_no_blank_follows_them() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 6, 1));
        buffer.set_string(0, 0, "漢字", Style::new().fg(Color::Red));
        buffer.set_string(4, 0, "ab", Style::new());
        let svg = picture(&buffer);
        let width = format!("textLength=\"{:.1}\"", x(4));
        assert!(svg.contains(">漢字</text>") && svg.contains(&width), "{svg}");
        assert!(svg.contains(&format!("<text x=\"{:.1}\"", x(4))), "{svg}");
    }
}
