import unittest

from cart import total


class TotalTest(unittest.TestCase):
    def test_without_discount(self):
        self.assertEqual(total([1, 2]), 3)

    def test_with_discount(self):
        self.assertEqual(total([10, 30], discount=0.25), 30)
