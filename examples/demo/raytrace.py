"""The classic ray-tracing benchmark scene, in pure Python and in independent tiles.

Six small balls in front of a big one stand on an endless checkerboard. Two lamps light them, and all surfaces are
slightly reflective. Only additions, multiplications, divisions and square roots are used, so a tile has the same bytes
in every worker of every kind. Only `math` is imported, so that a fresh worker is ready at once.
"""

from math import floor, inf, sqrt

type Vector = tuple[float, float, float]
type Tile = tuple[int, int, int, int]  # left, top, right, bottom in pixels; right and bottom are exclusive

_AMBIENT, _DIFFUSE, _MIRROR = 0.2, 0.6, 0.2  # shares of a surface's light; they sum to 1
_MAX_REFLECTIONS = 3
_NEAREST = 1e-6  # a closer hit is the surface that the ray has just left
_TAN_HALF_VIEW = sqrt(2.0) - 1.0  # the tangent of 22.5 degrees: the view is 45 degrees wide


def _add(a: Vector, b: Vector) -> Vector:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def _subtract(a: Vector, b: Vector) -> Vector:
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


def _scale(a: Vector, factor: float) -> Vector:
    return a[0] * factor, a[1] * factor, a[2] * factor


def _dot(a: Vector, b: Vector) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _cross(a: Vector, b: Vector) -> Vector:
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


def _unit(a: Vector) -> Vector:
    return _scale(a, 1.0 / sqrt(_dot(a, a)))


class Ball:
    """A sphere of one colour."""

    __slots__ = ("centre", "colour", "radius_squared")

    def __init__(self, centre: Vector, radius: float, colour: Vector) -> None:
        self.centre = centre
        self.radius_squared = radius * radius
        self.colour = colour

    def distance(self, origin: Vector, direction: Vector) -> float:
        """Return how far along the unit vector `direction` the ray meets the ball, or infinity."""
        to_centre = _subtract(self.centre, origin)
        along = _dot(to_centre, direction)
        below_surface = self.radius_squared - _dot(to_centre, to_centre) + along * along
        if below_surface < 0.0:
            return inf
        hit = along - sqrt(below_surface)
        return hit if hit > _NEAREST else inf

    def normal_at(self, point: Vector) -> Vector:
        """Return the unit vector that points straight out of the surface."""
        return _unit(_subtract(point, self.centre))

    def colour_at(self, point: Vector) -> Vector:
        """Return the colour of the surface, the same everywhere."""
        return self.colour


class Floor:
    """The plane of height 0, tiled in two colours."""

    __slots__ = ("colours",)

    def __init__(self, light: Vector, dark: Vector) -> None:
        self.colours = light, dark

    def distance(self, origin: Vector, direction: Vector) -> float:
        """Return how far along the unit vector `direction` the ray meets the floor, or infinity."""
        if direction[1] == 0.0:
            return inf
        hit = -origin[1] / direction[1]
        return hit if hit > _NEAREST else inf

    def normal_at(self, point: Vector) -> Vector:
        """Return the direction up."""
        return 0.0, 1.0, 0.0

    def colour_at(self, point: Vector) -> Vector:
        """Return the colour of the tile of edge 1 that the point is on."""
        return self.colours[(floor(point[0]) + floor(point[2])) % 2]


type _Thing = Ball | Floor

_THINGS: tuple[_Thing, ...] = (
    Ball((1.0, 3.0, -10.0), 1.0, (1.0, 1.0, 0.0)),
    *(Ball((-3.0 - i * 0.4, 2.3, -5.0), 0.4, (i / 6.0, 1.0 - i / 6.0, 0.5)) for i in range(6)),
    Floor((1.0, 1.0, 1.0), (0.05, 0.05, 0.05)),
)
_LAMPS: tuple[Vector, ...] = ((30.0, 30.0, 10.0), (-10.0, 100.0, 30.0))
_EYE: Vector = (0.0, 1.8, 10.0)
_FORWARD = _unit(_subtract((0.0, 3.0, 0.0), _EYE))
_RIGHT = _unit(_cross(_FORWARD, (0.0, 1.0, 0.0)))
_UP = _cross(_RIGHT, _FORWARD)
_RAYS = ((0.25, 0.25), (0.75, 0.25), (0.25, 0.75), (0.75, 0.75))  # where rays cross a pixel


def _first_hit(origin: Vector, direction: Vector) -> tuple[float, _Thing | None]:
    nearest: tuple[float, _Thing | None] = (inf, None)
    for thing in _THINGS:
        distance = thing.distance(origin, direction)
        if distance < nearest[0]:
            nearest = distance, thing
    return nearest


def _is_hidden(point: Vector, direction: Vector, distance: float) -> bool:
    return any(thing.distance(point, direction) < distance for thing in _THINGS)


def _lamp_light(point: Vector, normal: Vector) -> float:
    """Return how much light falls on `point` from the lamps visible there, at most 1."""
    light = 0.0
    for lamp in _LAMPS:
        to_lamp = _subtract(lamp, point)
        distance = sqrt(_dot(to_lamp, to_lamp))
        direction = _scale(to_lamp, 1.0 / distance)
        facing = _dot(direction, normal)
        if facing > 0.0 and not _is_hidden(point, direction, distance):
            light += facing
    return min(light, 1.0)


def _sky(direction: Vector) -> Vector:
    height = max(0.0, min(1.0, direction[1] * 2.0))
    return 0.55 - 0.45 * height, 0.7 - 0.4 * height, 0.9 - 0.2 * height


def _colour_seen(origin: Vector, direction: Vector, n_reflections: int = 0) -> Vector:
    distance, thing = _first_hit(origin, direction)
    if thing is None:
        return _sky(direction)
    point = _add(origin, _scale(direction, distance))
    normal = thing.normal_at(point)
    light = _AMBIENT + _DIFFUSE * _lamp_light(point, normal)
    seen = _scale(thing.colour_at(point), light)
    if n_reflections == _MAX_REFLECTIONS:
        return seen
    mirrored = _subtract(direction, _scale(normal, 2.0 * _dot(direction, normal)))
    return _add(seen, _scale(_colour_seen(point, mirrored, n_reflections + 1), _MIRROR))


def _through(x: float, y: float, width: int, height: int) -> Vector:
    """Return the unit vector from the eye through a point of the picture, given in pixels."""
    unit = 2.0 * _TAN_HALF_VIEW / width
    sideways = _scale(_RIGHT, (x - width / 2) * unit)
    upwards = _scale(_UP, (height / 2 - y) * unit)
    return _unit(_add(_FORWARD, _add(sideways, upwards)))


def _pixel(x: int, y: int, width: int, height: int) -> bytes:
    """Return red, green and blue of one pixel, as the mean of several rays."""
    seen: Vector = (0.0, 0.0, 0.0)
    for right, down in _RAYS:
        seen = _add(seen, _colour_seen(_EYE, _through(x + right, y + down, width, height)))
    return bytes(min(255, int(sum_ * (255.0 / len(_RAYS)) + 0.5)) for sum_ in seen)


def render_tile(job: tuple[int, int, Tile]) -> tuple[Tile, bytes]:
    """Render one tile of a picture of `width` x `height` pixels; `job` is (width, height, tile).

    Return the tile and its pixels, row by row, three bytes (red, green, blue) each.
    """
    width, height, tile = job
    left, top, right, bottom = tile
    pixels = bytearray()
    for y in range(top, bottom):
        for x in range(left, right):
            pixels += _pixel(x, y, width, height)
    return tile, bytes(pixels)


def cut_in_tiles(width: int, height: int, edge: int) -> list[Tile]:
    """Cut a picture into squares of `edge` pixels; those at the right and the bottom may be smaller.

    Tiles come row by row from the top, and cover every pixel once.
    """
    return [
        (left, top, min(left + edge, width), min(top + edge, height))
        for top in range(0, height, edge)
        for left in range(0, width, edge)
    ]


def paste(picture: bytearray, width: int, tile: Tile, pixels: bytes) -> None:
    """Copy the pixels of a tile to its place in `picture`, which is `width` pixels wide."""
    left, top, right, bottom = tile
    row_bytes = 3 * (right - left)
    for row in range(bottom - top):
        start = 3 * ((top + row) * width + left)
        picture[start : start + row_bytes] = pixels[row * row_bytes : (row + 1) * row_bytes]
