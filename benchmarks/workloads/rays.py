"""A ray tracer: many small objects, and a scene of constants that all tasks of a process share."""

import math
from dataclasses import dataclass
from typing import Self

_FAR = math.inf
_EPSILON = 1e-6
_MAX_BOUNCES = 3


class Vector:
    """Three numbers: a place, a direction or a colour."""

    __slots__ = ("x", "y", "z")

    def __init__(self, x: float, y: float, z: float) -> None:
        self.x, self.y, self.z = x, y, z

    def __add__(self, other: Self) -> "Vector":
        return Vector(self.x + other.x, self.y + other.y, self.z + other.z)

    def __sub__(self, other: Self) -> "Vector":
        return Vector(self.x - other.x, self.y - other.y, self.z - other.z)

    def __mul__(self, factor: float) -> "Vector":
        return Vector(self.x * factor, self.y * factor, self.z * factor)

    def dot(self, other: Self) -> float:
        """Return the inner product."""
        return self.x * other.x + self.y * other.y + self.z * other.z

    def cross(self, other: Self) -> "Vector":
        """Return the outer product."""
        return Vector(
            self.y * other.z - self.z * other.y,
            self.z * other.x - self.x * other.z,
            self.x * other.y - self.y * other.x,
        )

    def unit(self) -> "Vector":
        """Return the vector of this direction with length 1."""
        return self * (1 / math.sqrt(self.dot(self)))

    def mirrored(self, normal: Self) -> "Vector":
        """Return this direction after reflection by a surface with that normal."""
        return self - normal * (2 * self.dot(normal))


@dataclass(frozen=True)
class Sphere:
    """A ball of one colour; `shine` is how much of its light is a reflection."""

    centre: Vector
    radius: float
    colour: Vector
    shine: float

    def distance(self, origin: Vector, direction: Vector) -> float:
        """Return the distance along a ray until it meets this."""
        to_centre = self.centre - origin
        along = to_centre.dot(direction)
        inside = self.radius**2 - to_centre.dot(to_centre) + along * along
        if inside < 0:
            return _FAR
        distance = along - math.sqrt(inside)
        return distance if distance > _EPSILON else _FAR

    def normal(self, place: Vector) -> Vector:
        """Return the direction away from the surface."""
        return (place - self.centre).unit()

    def colour_at(self, place: Vector) -> Vector:
        """Return the colour of the surface."""
        return self.colour


@dataclass(frozen=True)
class Floor:
    """The plane at a height, tiled like a chessboard."""

    height: float
    colours: tuple[Vector, Vector]
    shine: float

    def distance(self, origin: Vector, direction: Vector) -> float:
        """Return the distance along a ray until it meets this."""
        if abs(direction.y) < _EPSILON:
            return _FAR
        distance = (self.height - origin.y) / direction.y
        return distance if distance > _EPSILON else _FAR

    def normal(self, place: Vector) -> Vector:
        """Return the direction away from the surface."""
        return _UP

    def colour_at(self, place: Vector) -> Vector:
        """Return the colour of the surface."""
        return self.colours[(math.floor(place.x) + math.floor(place.z)) % 2]


def _small(angle: float) -> Sphere:
    centre = Vector(2.4 * math.cos(angle), 0.5, 2.4 * math.sin(angle))
    return Sphere(centre, 0.5, Vector(0.2, 0.2 + angle / 9, 0.8), 0.4)


_UP = Vector(0, 1, 0)
_BLACK = Vector(0, 0, 0)
_SKY = Vector(0.3, 0.4, 0.6)
_AMBIENT = 0.15
_EYE = Vector(0, 1.8, -8)
_AIM = Vector(0, 0.8, 0)
_LIGHTS = (Vector(-10, 12, -8), Vector(6, 9, -12))
_THINGS = (
    Floor(0, (Vector(0.9, 0.9, 0.9), Vector(0.1, 0.1, 0.15)), 0.2),
    Sphere(Vector(0, 1, 0), 1, Vector(0.8, 0.2, 0.2), 0.3),
    *(_small(angle) for angle in range(6)),
)


def _nearest(origin: Vector, direction: Vector) -> tuple[float, Sphere | Floor | None]:
    distance, nearest = _FAR, None
    for thing in _THINGS:
        candidate = thing.distance(origin, direction)
        if candidate < distance:
            distance, nearest = candidate, thing
    return distance, nearest


def _is_lit(place: Vector, direction: Vector, distance: float) -> bool:
    return all(thing.distance(place, direction) > distance for thing in _THINGS)


def _brightness(place: Vector, normal: Vector) -> float:
    """Return the brightness of a place in the light of the lamps."""
    brightness = _AMBIENT
    for light in _LIGHTS:
        to_light = light - place
        distance = math.sqrt(to_light.dot(to_light))
        direction = to_light * (1 / distance)
        slope = normal.dot(direction)
        if slope > 0 and _is_lit(place, direction, distance):
            brightness += slope / len(_LIGHTS)
    return brightness


def _colour(origin: Vector, direction: Vector, n_bounces: int) -> Vector:
    if n_bounces > _MAX_BOUNCES:
        return _BLACK
    distance, thing = _nearest(origin, direction)
    if thing is None:
        return _SKY
    place = origin + direction * distance
    normal = thing.normal(place)
    reflected = _colour(place, direction.mirrored(normal), n_bounces + 1)
    own = thing.colour_at(place) * _brightness(place, normal)
    return own * (1 - thing.shine) + reflected * thing.shine


def raytrace(size: tuple[int, int]) -> bytes:
    """Return a picture of that width and height: red, green and blue of each pixel, row by row."""
    width, height = size
    ahead = (_AIM - _EYE).unit()
    right = _UP.cross(ahead).unit()
    up = ahead.cross(right)
    picture = bytearray()
    for row in range(height):
        for column in range(width):
            across, above = (column + 0.5) / width - 0.5, (0.5 - (row + 0.5) / height) * height / width
            colour = _colour(_EYE, (ahead + right * across + up * above).unit(), 0)
            picture += bytes(min(255, int(256 * part)) for part in (colour.x, colour.y, colour.z))
    return bytes(picture)
