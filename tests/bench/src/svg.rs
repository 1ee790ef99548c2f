//! Line charts as SVG, by hand: their few shapes are not worth a crate. They bring their own background and follow the
//! reader's light or dark theme.

use std::fmt::Write;

pub struct Chart<'a> {
    pub title: &'a str,
    pub x: Axis<'a>,
    pub y: Axis<'a>,
    pub lines: Vec<Line<'a>>,
}

#[derive(Clone, Copy)]
pub struct Axis<'a> {
    pub label: &'a str,
    pub scale: Scale,
    /// What a number of it is shown with, such as `%`.
    pub unit: &'a str,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    /// From zero.
    Linear,
    Logarithmic,
}

pub struct Line<'a> {
    pub name: &'a str,
    pub points: Vec<(f64, f64)>,
    /// A dot at each point: where they are few.
    pub dots: bool,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 130.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;

/// For as many lines as any chart has; told apart by those who do not tell red from green, too.
const STYLE: &str = "\
    text { font: 13px system-ui, sans-serif; fill: #1f2328 } .title { font-size: 15px; font-weight: 600 }\n\
    .back { fill: #ffffff } .grid { stroke: #d8dee4; stroke-width: 1 } .axis { stroke: #59636e; stroke-width: 1 }\n\
    polyline { fill: none; stroke-width: 2.2; stroke-linejoin: round }\n\
    .l0 { stroke: #0550ae } .l1 { stroke: #bc4c00 } .l2 { stroke: #1a7f64 } .l3 { stroke: #8250df }\n\
    .d0 { fill: #0550ae } .d1 { fill: #bc4c00 } .d2 { fill: #1a7f64 } .d3 { fill: #8250df }\n\
    @media (prefers-color-scheme: dark) {\n\
    text { fill: #e6edf3 } .back { fill: #0d1117 } .grid { stroke: #30363d } .axis { stroke: #9198a1 }\n\
    .l0 { stroke: #58a6ff } .l1 { stroke: #f0883e } .l2 { stroke: #56d4a8 } .l3 { stroke: #bc8cff }\n\
    .d0 { fill: #58a6ff } .d1 { fill: #f0883e } .d2 { fill: #56d4a8 } .d3 { fill: #bc8cff }\n\
    }";

/// A picture that is being drawn.
pub struct Canvas(String);

impl Canvas {
    pub fn new([width, height]: [f64; 2], style: &str, title: &str) -> Self {
        let title = escaped(title);
        let mut canvas = Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-label=\"{title}\">\n<style>\n{STYLE}{style}\n</style>\n"
        ));
        canvas.rect("back", [0.0, 0.0, width, height]);
        canvas
    }

    pub fn rect(&mut self, class: &str, [x, y, width, height]: [f64; 4]) {
        let at = format!("x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"");
        self.add(format_args!("<rect class=\"{class}\" {at}/>"));
    }

    pub fn line(&mut self, class: &str, [x1, y1, x2, y2]: [f64; 4]) {
        let at = format!("x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"");
        self.add(format_args!("<line class=\"{class}\" {at}/>"));
    }

    /// `how`: its class or its anchor, as attributes.
    pub fn text(&mut self, how: &str, [x, y]: [f64; 2], text: &str) {
        let text = escaped(text);
        self.add(format_args!("<text {how} x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"));
    }

    /// From below to above.
    pub fn upward(&mut self, [x, y]: [f64; 2], text: &str) {
        let turned = format!("{MIDDLE} transform=\"translate({x:.1} {y:.1}) rotate(-90)\"");
        self.text(&turned, [0.0, 0.0], text);
    }

    pub fn add(&mut self, what: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{what}").expect("memory");
    }

    pub fn done(self) -> String {
        self.0 + "</svg>\n"
    }
}

pub const MIDDLE: &str = "text-anchor=\"middle\"";

impl Chart<'_> {
    pub fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let across = Range::of(self.x, points().map(|point| point.0));
        let up = Range::of(self.y, points().map(|point| point.1));
        let x = |value: f64| LEFT + across.share(value) * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| HEIGHT - BOTTOM - up.share(value) * (HEIGHT - TOP - BOTTOM);
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let mut canvas = Canvas::new([WIDTH, HEIGHT], "", self.title);
        canvas.text("class=\"title\"", [LEFT, 24.0], self.title);
        for tick in across.ticks() {
            canvas.line("grid", [x(tick), TOP, x(tick), bottom]);
            canvas.text(MIDDLE, [x(tick), bottom + 18.0], &shown(tick, self.x.unit));
        }
        for tick in up.ticks() {
            canvas.line("grid", [LEFT, y(tick), right, y(tick)]);
            let at = [LEFT - 8.0, y(tick) + 4.5];
            canvas.text("text-anchor=\"end\"", at, &shown(tick, self.y.unit));
        }
        canvas.line("axis", [LEFT, bottom, right, bottom]);
        canvas.line("axis", [LEFT, TOP, LEFT, bottom]);
        canvas.text(MIDDLE, [(LEFT + right) / 2.0, HEIGHT - 14.0], self.x.label);
        canvas.upward([18.0, (TOP + bottom) / 2.0], self.y.label);
        for (n, line) in self.lines.iter().enumerate() {
            let points = line.points.iter().map(|point| (x(point.0), y(point.1)));
            let path: Vec<String> = points.clone().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            canvas.add(format_args!("<polyline class=\"l{n}\" points=\"{}\"/>", path.join(" ")));
            for (x, y) in points.filter(|_| line.dots) {
                canvas.add(format_args!(
                    "<circle class=\"d{n}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>"
                ));
            }
            let (key, at) = (right + 14.0, TOP + 10.0 + 22.0 * n as f64);
            canvas.rect(&format!("d{n}"), [key, at - 6.0, 14.0, 4.0]);
            canvas.text("", [key + 20.0, at], line.name);
        }
        canvas.done()
    }
}

/// What an axis shows.
struct Range {
    from: f64,
    to: f64,
    scale: Scale,
}

impl Range {
    fn of(axis: Axis<'_>, values: impl Iterator<Item = f64>) -> Self {
        let (mut least, mut most) = (f64::MAX, f64::MIN);
        for value in values.filter(|value| axis.scale == Scale::Linear || *value > 0.0) {
            (least, most) = (least.min(value), most.max(value));
        }
        assert!(least <= most, "{}: nothing to draw", axis.label);
        let (from, to) = match axis.scale {
            Scale::Linear => (0.0, most),
            Scale::Logarithmic => (least, most),
        };
        // A single value has a place too.
        let to = if to > from { to } else { from + 1.0 };
        Self {
            from,
            to,
            scale: axis.scale,
        }
    }

    /// From 0 to 1. What a logarithm cannot show is at its beginning.
    fn share(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.from) / (self.to - self.from),
            Scale::Logarithmic => (value.max(self.from) / self.from).ln() / (self.to / self.from).ln(),
        }
    }

    /// Round numbers: a handful on a linear axis; on a logarithmic one the powers of ten, and 2 and 5 times those if it
    /// spans few of them.
    fn ticks(&self) -> Vec<f64> {
        if self.scale == Scale::Linear {
            let raw = (self.to - self.from) / 5.0;
            let power = 10_f64.powf(raw.log10().floor());
            let step = [1.0, 2.0, 5.0, 10.0]
                .map(|n| n * power)
                .into_iter()
                .find(|step| *step >= raw);
            let step = step.unwrap_or(raw);
            return (0..)
                .map(|n| f64::from(n) * step)
                .take_while(|tick| *tick <= self.to * 1.0001)
                .collect();
        }
        let decades = (self.to / self.from).log10();
        let parts: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let first = self.from.log10().floor() as i32;
        let last = self.to.log10().ceil() as i32;
        let all = (first..=last).flat_map(|power| parts.iter().map(move |part| part * 10_f64.powi(power)));
        all.filter(|tick| *tick >= self.from * 0.9999 && *tick <= self.to * 1.0001)
            .collect()
    }
}

fn shown(number: f64, unit: &str) -> String {
    if number >= 1e6 {
        format!("{}M{unit}", number / 1e6)
    } else if number >= 1e4 {
        format!("{}k{unit}", number / 1e3)
    } else {
        // Without the dust of binary fractions.
        format!("{}{unit}", (number * 1e6).round() / 1e6)
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(scale: Scale, values: &[f64]) -> Range {
        let axis = Axis {
            label: "",
            scale,
            unit: "",
        };
        Range::of(axis, values.iter().copied())
    }

    #[test]
    fn ticks_are_round_and_within() {
        assert_eq!(
            range(Scale::Linear, &[3.0, 47.0]).ticks(),
            [0.0, 10.0, 20.0, 30.0, 40.0]
        );
        assert_eq!(range(Scale::Logarithmic, &[10.0, 10_000.0, 0.0]).ticks().len(), 10);
        assert_eq!(range(Scale::Logarithmic, &[1.0, 1e6]).ticks().len(), 7);
        assert_eq!(range(Scale::Logarithmic, &[30.0, 90.0]).ticks(), [50.0]);
    }

    #[test]
    fn values_have_their_places() {
        let linear = range(Scale::Linear, &[20.0, 40.0]);
        assert_eq!(
            (linear.share(0.0), linear.share(10.0), linear.share(40.0)),
            (0.0, 0.25, 1.0)
        );
        let log = range(Scale::Logarithmic, &[0.0, 1.0, 100.0]);
        assert_eq!((log.share(0.0), log.share(10.0), log.share(100.0)), (0.0, 0.5, 1.0));
    }

    #[test]
    fn a_chart_has_all_its_lines() {
        let axis = Axis {
            label: "a < b",
            scale: Scale::Linear,
            unit: "%",
        };
        let line = |name| Line {
            name,
            points: vec![(0.0, 1.0), (2.0, 3.0)],
            dots: true,
        };
        let chart = Chart {
            title: "\"A\" & B",
            x: axis,
            y: axis,
            lines: vec![line("one"), line("two")],
        };
        let svg = chart.svg();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("<circle").count(), 4);
        assert!(svg.contains(">two</text>") && svg.contains("&quot;A&quot; &amp; B") && svg.contains("a &lt; b"));
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    }
}
