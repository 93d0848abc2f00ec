// SPDX-License-Identifier: Apache-2.0

// The test is that the other files of this program compile and link together.
int main() {}
