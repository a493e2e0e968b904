// SPDX-License-Identifier: Apache-2.0
//
// Asio's own functions, compiled once for all files that use it (BOOST_ASIO_SEPARATE_COMPILATION in
// CMakeLists.txt).
#include <boost/asio/impl/src.hpp>
